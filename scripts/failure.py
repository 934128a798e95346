"""The one exception of the host side: a coded failure. Knows no meaning of any code (`codes.py` does) and prints nothing."""

from __future__ import annotations


class Failure(Exception):
    """A step cannot go on. `code` is a key of the codes registry, such as `E_PIN`.

    `found` and `needed` are facts of this very case, in plain words. `remedy` is set only where this case knows better than the
    registry's text for the code; empty means: use the registry's.
    """

    def __init__(self, code: str, *, found: str, needed: str, remedy: str = "") -> None:
        super().__init__(f"{code}: found {found}; needed {needed}")
        self.code = code
        self.found = found
        self.needed = needed
        self.remedy = remedy
