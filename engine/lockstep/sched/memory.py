"""Slots and pages of the requests that run: who may enter, who grows, who has to make way. Numbers only.

A request takes pages as it grows. Those who enter leave headroom for those who run, so that a pool rarely runs short; when it does, kept
prompts go first, then the request that comes last is paused.
"""

from bisect import insort

from lockstep.core.grid import PAGE_TOKENS
from lockstep.sched.kept import KeptLimits, KeptPrompts, KeptState
from lockstep.sched.ledger import Ledger
from lockstep.sched.live import Live

# Together the requests of all slots leave this part of the pool free when one enters.
HEADROOM_SHARE = 8


class Memory:
    """`owners` are the requests with a slot, first to be served first."""

    def __init__(self, slots: int, pages: int, kept: KeptLimits) -> None:
        self.slots, self.pages = Ledger(slots), Ledger(pages)
        self.kept = KeptPrompts(kept, self.pages)
        self.owners: list[Live] = []
        self._most_headroom = max(1, pages // (HEADROOM_SHARE * slots))

    @property
    def free_pages(self) -> int:
        """Pages nobody owns, or only kept prompt states."""
        return self.pages.free + self.kept.idle_pages

    def headroom(self, live: Live) -> int:
        """Pages to leave free for the growth of `live`."""
        return min(self._most_headroom, live.most_pages - max(len(live.pages), live.needed_pages()))

    @property
    def spare_pages(self) -> int:
        """Pages to leave free for those who run."""
        return sum(self.headroom(live) for live in self.owners)

    def has_lane(self, live: Live) -> bool:
        """True if `live` may take a slot. Requests that stand back leave one to the others, if there are several."""
        if self.slots.count == 1 or live.request.priority <= 0:
            return self.slots.free > 0
        behind = sum(owner.request.priority > 0 for owner in self.owners)
        return self.slots.free > 0 and behind < self.slots.count - 1

    def has_room(self, live: Live, source: KeptState | None = None) -> bool:
        """True if there are pages for the next step of `live`, beside headroom for all. Whoever is alone always has them."""
        shared = len(self.kept.shared_pages(source)) if source else 0
        return self.kept.has_room(live.needed_pages() - shared + self.headroom(live) + self.spare_pages, source)

    def enter(self, live: Live, shared: tuple[int, ...] = ()) -> None:
        """Give `live`, which has room, a slot and pages, the first of them `shared`."""
        self.pages.share(shared)
        missing = live.needed_pages() - len(shared)
        self.kept.make_room(missing)
        live.slot, live.pages = self.slots.take(1)[0], [*shared, *self.pages.take(missing)]
        insort(self.owners, live, key=lambda owner: owner.place)

    def leave(self, live: Live) -> None:
        """Take slot and pages back."""
        assert live.slot is not None
        self.owners.remove(live)
        self.slots.give_back((live.slot,))
        self.pages.give_back(live.pages)
        live.slot, live.pages = None, []

    def grow(self, live: Live, drafts: int = 0) -> tuple[int, ...] | None:
        """The further pages that the next step of `live` needs; None if there are not so many."""
        missing = max(0, live.needed_pages(drafts) - len(live.pages))
        if not (self.kept.has_room(missing, None) and self.kept.make_room(missing)):
            return None
        pages = self.pages.take(missing)
        live.pages += pages
        return pages

    def drafts_held(self, live: Live) -> int:
        """Drafts that fit the pages `live` has."""
        return len(live.pages) * PAGE_TOKENS - live.prompt.tokens - live.generated
