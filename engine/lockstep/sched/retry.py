"""How long until a place is free: measured from requests that ended. The clock is handed in."""

import math

FOLLOW = 0.2
LONGEST_S = 600


class Departures:
    """Follows how long a request owns its slot."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._stay_s: float | None = None

    def ended(self, stay_s: float) -> None:
        """A request ended `stay_s` after it entered."""
        self._stay_s = stay_s if self._stay_s is None else self._stay_s + FOLLOW * (stay_s - self._stay_s)

    def wait_s(self, places: int, oldest_stay_s: float) -> int:
        """Whole seconds, at least 1, until `places` requests will have ended; before any did, going by the oldest that runs."""
        stay_s = oldest_stay_s if self._stay_s is None else self._stay_s
        return min(LONGEST_S, max(1, math.ceil(places * stay_s / self._slots)))
