"""Where one sequence lives: its state slot and its pages. Knows nothing of tensors; whoever owns the pool hands out pages."""

from dataclasses import dataclass, field

from lockstep.core.grid import pages_of


@dataclass(slots=True)
class Sequence:
    """One sequence. `pages[i]` holds tokens 64 i .. 64 i + 63; `length` counts committed tokens.

    Before a forward pass over n more rows `pages` must cover `length` + n tokens. Pages and slot may be any, in any order:
    no result depends on them.
    """

    slot: int
    pages: list[int] = field(default_factory=list)
    length: int = 0

    def pages_needed(self, rows: int) -> int:
        """Pages missing before `rows` more tokens fit."""
        return max(0, pages_of(self.length + rows) - len(self.pages))
