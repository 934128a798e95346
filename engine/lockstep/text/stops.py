"""Stop strings over text that comes in pieces. Knows no tokens."""

from collections.abc import Sequence


class StopScanner:
    """Holds back exactly the tail that can still become a stop, gives everything before it, and ends at the first stop that is complete.

    Which stop ends the text does not depend on how it was cut: the one whose last character comes first, and of those the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """`stops`: no empty string among them; none at all lets everything through."""
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Text that is safe to show. Nothing more once a stop has matched; the stop itself is never shown."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        ends = [(at + len(stop), -len(stop), stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            end, _, self.matched = min(ends)
            self._held = ""
            return text[: end - len(self.matched)]
        keep = self._possible_start(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held back, once no more text can come."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """Length of the longest tail of `text` that begins a stop."""
        for size in range(min(len(text), max(map(len, self._stops)) - 1), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
