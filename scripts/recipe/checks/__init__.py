"""The checks: one question a file, `check(facts, need) -> Finding`. Facts are gathered elsewhere, texts of remedies stand in `codes.py`."""

from dataclasses import dataclass

from failure import Failure


@dataclass(frozen=True)
class Finding:
    """Answer of a check. `needed` and `remedy` are empty where nothing is wrong."""

    code: str
    found: str
    needed: str = ""
    remedy: str = ""

    @property
    def is_failure(self) -> bool:
        return self.code.startswith("E_")

    def failure(self) -> Failure:
        return Failure(self.code, found=self.found, needed=self.needed, remedy=self.remedy)
