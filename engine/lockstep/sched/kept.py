"""Which prompt states are kept, for whom, where their tokens lie, and which goes first. Numbers only: the runner holds the states.

A state belongs to a namespace and a prefix. It owns the pages of that prefix together with whoever else uses them; a request that begins
from it shares all of them but the last, which it gets a copy of, because a drafter writes its last row again.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lockstep.core.grid import TILE
from lockstep.core.plan import Restore, Spill, Spilled
from lockstep.sched.ledger import Ledger
from lockstep.sched.trace import Key, Trace


@dataclass(frozen=True, slots=True)
class KeptLimits:
    """What may be kept: `budget_bytes` of states and `spill_bytes` on disk, 0 for nothing; a namespace above `share` of it loses first.

    A state has `state_bytes`, and `logits_bytes` more at a prompt's end; a page on disk has `page_bytes`. States are made every
    `grid_tokens` of a prompt, at its marks and its end; prefixes below `least_tokens` are not worth it.
    """

    budget_bytes: int = 0
    state_bytes: int = 1
    logits_bytes: int = 0
    page_bytes: int = 0
    spill_bytes: int = 0
    share: float = 0.5
    grid_tokens: int = 2048
    least_tokens: int = TILE

    @property
    def on(self) -> bool:
        """True if one state fits."""
        return self.budget_bytes >= self.state_bytes + self.logits_bytes


@dataclass(slots=True, eq=False)
class KeptState:
    """One state, in memory, on disk or both. `size_bytes` are those in memory, without its `pages`, which are none if it is on disk only.

    `used` counts up with every use; `at_end` if it has the last row's logits.
    """

    number: int
    namespace: str
    key: Key
    tokens: int
    pages: tuple[int, ...]
    size_bytes: int
    at_end: bool
    lasting: bool
    used: int = 0
    hits: int = 0
    superseded: bool = False
    disk_bytes: int = 0

    @property
    def in_memory(self) -> bool:
        """True if the runner holds it; False if it must be read first."""
        return bool(self.pages)

    @property
    def label(self) -> str:
        """What the index must know to find it again, as text."""
        digest, rest = self.key
        return json.dumps([self.namespace, digest.hex(), rest, self.tokens, self.at_end, self.lasting])


@dataclass(slots=True)
class KeptTotals:
    """Counts since the start."""

    asked_tokens: int = 0
    hit_tokens: int = 0
    made: int = 0
    evicted: int = 0
    spilled: int = 0
    returned: int = 0
    lost: int = 0
    waits: int = 0


@dataclass(slots=True)
class _Orders:
    """What the next plan must tell the runner, and the states it may not touch because the same plan uses them; `arriving` ones are read
    from disk by it.
    """

    spills: list[Spill] = field(default_factory=list)
    drops: list[int] = field(default_factory=list)
    in_use: dict[int, KeptState] = field(default_factory=dict)
    arriving: set[int] = field(default_factory=set)


class KeptPrompts:
    """The index of kept states over the pages of `pages`, with `disk_bytes` on disk. Rank 0 has the only one; plans tell the others."""

    def __init__(self, limits: KeptLimits, pages: Ledger) -> None:
        self.limits, self.totals = limits, KeptTotals()
        self._pages = pages
        self._states: dict[Key, KeptState] = {}
        self._by_tile: dict[bytes, list[KeptState]] = {}
        self._bytes: Counter[str] = Counter()
        self.disk_bytes = self._clock = self._numbers = 0
        self._orders = _Orders()

    def __len__(self) -> int:
        return len(self._states)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the states in memory, their pages not counted."""
        return self._bytes.total()

    @property
    def idle_pages(self) -> int:
        """Pages only kept states own: those that `make_room` can free."""
        return self._pages.idle

    def adopt(self, found: Iterable[Spilled]) -> None:
        """Know states of an earlier engine, least recently used first. What there is no room for is dropped from disk."""
        for one in found:
            namespace, digest, rest, tokens, at_end, lasting = json.loads(one.label)
            size_bytes = self._size(at_end)
            key = (bytes.fromhex(digest), tuple(rest))
            state = KeptState(one.kept, namespace, key, tokens, (), size_bytes, at_end, lasting, disk_bytes=one.size_bytes)
            self._numbers = max(self._numbers, one.kept)
            self._touch(state)
            if not self.limits.on or key in self._states or not self._make_room_on_disk(one.size_bytes, state.used):
                self._orders.drops.append(one.kept)
                continue
            self._enter(state)
            self.disk_bytes += state.disk_bytes

    def put_away(self) -> bool:
        """Let one more state go to disk, those used last first; False if none is left that may. For an engine that ends."""
        waiting = [state for state in self._movable() if not state.superseded]
        state = max(waiting, key=lambda state: state.used, default=None)
        if state is None or not self.limits.spill_bytes:
            return False
        self._evict(state)
        return True

    def find(self, trace: Trace) -> KeptState | None:
        """The longest state a prompt can begin from: its end if that is kept, else a whole number of tiles before its last token."""
        if not self.limits.on:
            return None
        whole = self._states.get(trace.key(trace.tokens))
        if whole and whole.at_end:
            return whole
        places = range(trace.last_tile, 0, -TILE)
        return next((state for place in places if (state := self._states.get((trace.chain[place // TILE], ())))), None)

    def points(self, trace: Trace, start: int) -> list[int]:
        """Prompt lengths behind `start` at which to keep a state, ascending; the last is the prompt's end."""
        if not self.limits.on or trace.tokens < self.limits.least_tokens:
            return []
        grid = range(self.limits.grid_tokens, trace.last_tile, self.limits.grid_tokens)
        wanted = {*grid, *trace.marks, trace.last_tile, trace.tokens}
        return sorted(point for point in wanted if point > start and point >= self.limits.least_tokens)

    def restore(self, state: KeptState) -> Restore:
        """Begin a prompt from `state`: it will not be evicted before the plan is out. The caller shares its pages (`shared_pages`)."""
        self._touch(state)
        state.hits += 1
        # A second prompt went on from here, so it is no mere step of one conversation.
        state.superseded &= state.hits < 2
        self._orders.in_use[state.number] = state
        return Restore(state.number, state.tokens, state.pages[-1] if state.in_memory else -1)

    def bring_back(self, state: KeptState, pages: tuple[int, ...]) -> bool:
        """Have a state on disk that a prompt begins from in memory again, with the `pages` of that prompt; False if there is no room."""
        self.totals.returned += 1
        if not self._make_room_bytes(state.size_bytes):
            return False
        self._own(state, pages)
        self._orders.arriving.add(state.number)
        return True

    def is_arriving(self, state: KeptState) -> bool:
        """True if the plan under way reads the state from disk, which may fail."""
        return state.number in self._orders.arriving

    def shared_pages(self, state: KeptState) -> tuple[int, ...]:
        """Pages a prompt that begins from `state` uses as they are."""
        return state.pages[:-1]

    def keep(self, trace: Trace, tokens: int, pages: tuple[int, ...]) -> int:
        """Keep the state behind the first `tokens` tokens, which lie in `pages`. Its number; 0 if it is kept already or has no room."""
        key, at_end = trace.key(tokens), tokens == trace.tokens
        old = self._states.get(key)
        if old and (old.at_end or not at_end):
            self._touch(old)
            return 0
        size_bytes = self._size(at_end)
        if (old and old.number in self._orders.in_use) or not self._make_room_bytes(size_bytes):
            return 0
        if old and key in self._states:
            self._drop(old)
        self._numbers += 1
        lasting = tokens in trace.marks[:1]
        state = KeptState(self._numbers, trace.namespace, key, tokens, (), size_bytes, at_end, lasting)
        self._enter(state)
        self._own(state, pages)
        self._supersede(trace, tokens)
        self._touch(state)
        self._orders.in_use[state.number] = state
        self.totals.made += 1
        return state.number

    def has_room(self, pages: int, beside: KeptState | None) -> bool:
        """True if `pages` pages are free or can be, while state `beside` stays."""
        if pages <= self._pages.free:
            return True
        staying = [*self._orders.in_use.values(), *([beside] if beside else [])]
        blocked = {page for state in staying for page in state.pages if self._pages.is_idle(page)}
        return pages <= self._pages.free + self.idle_pages - len(blocked)

    def make_room(self, pages: int) -> bool:
        """Evict until `pages` pages are free; False if that many cannot be."""
        while self._pages.free < pages:
            state = self._first_to_go(frees_pages=True) or self._first_to_go(frees_pages=False)
            if state is None:
                return False
            self._evict(state)
        return True

    def forget(self, number: int) -> None:
        """The runner does not have this state."""
        state = next((state for state in self._states.values() if state.number == number), None)
        if state:
            self._drop(state)

    def take_orders(self) -> tuple[tuple[Spill, ...], tuple[int, ...]]:
        """Spills and drops for the plan under way, which is out from here on."""
        orders, self._orders = self._orders, _Orders()
        return tuple(orders.spills), tuple(orders.drops)

    def _touch(self, state: KeptState) -> None:
        self._clock += 1
        state.used = self._clock

    def _supersede(self, trace: Trace, tokens: int) -> None:
        """States on the way to this one are steps of its conversation, unless they were begun from more than once.

        A longer prompt can only go on from a whole number of tiles, so a state at another length replaces none.
        """
        if tokens % TILE:
            return
        for at, digest in enumerate(trace.chain[: tokens // TILE + 1]):
            for state in self._by_tile.get(digest, ()):
                is_on_the_way = state.tokens < tokens and trace.ids[at * TILE : state.tokens] == state.key[1]
                state.superseded |= is_on_the_way and not state.lasting and state.hits < 2

    def _make_room_bytes(self, size_bytes: int) -> bool:
        while self.memory_bytes + size_bytes > self.limits.budget_bytes:
            state = self._first_to_go(frees_pages=False)
            if state is None:
                return False
            self._evict(state)
        return True

    def _first_to_go(self, frees_pages: bool) -> KeptState | None:
        """Who owns too much, then superseded states, then the least recently used; None if the plan under way uses all of them."""
        fair = self.limits.share * self.limits.budget_bytes
        others = len(self._bytes) > 1
        return min(
            (state for state in self._movable() if not frees_pages or self._frees(state)),
            key=lambda state: (not (others and self._bytes[state.namespace] > fair), not state.superseded, state.used),
            default=None,
        )

    def _movable(self) -> Iterator[KeptState]:
        return (state for state in self._states.values() if state.in_memory and state.number not in self._orders.in_use)

    def _frees(self, state: KeptState) -> bool:
        """Prefixes share pages from the front, so a state that owns any page alone owns its last one alone."""
        return self._pages.owners(state.pages[-1]) == 1

    def _evict(self, state: KeptState) -> None:
        self.totals.evicted += 1
        size_bytes = state.size_bytes + len(state.pages) * self.limits.page_bytes
        if state.superseded or not (state.disk_bytes or self._make_room_on_disk(size_bytes, state.used)):
            self._drop(state)
            return
        if state.disk_bytes:
            self._orders.spills.append(Spill(state.number))
        else:
            self._orders.spills.append(Spill(state.number, state.pages, state.label))
            self.totals.spilled += 1
            state.disk_bytes = size_bytes
            self.disk_bytes += size_bytes
        self._disown(state)

    def _make_room_on_disk(self, size_bytes: int, used: int) -> bool:
        """Drop what is on disk only and was used before `used` until `size_bytes` fit."""
        while self.disk_bytes + size_bytes > self.limits.spill_bytes:
            known = (state for state in self._states.values() if not state.in_memory and state.used < used)
            state = min((state for state in known if state.number not in self._orders.in_use), key=lambda state: state.used, default=None)
            if state is None:
                return False
            self._drop(state)
        return True

    def _size(self, at_end: bool) -> int:
        return self.limits.state_bytes + (self.limits.logits_bytes if at_end else 0)

    def _enter(self, state: KeptState) -> None:
        self._states[state.key] = state
        self._by_tile.setdefault(state.key[0], []).append(state)

    def _drop(self, state: KeptState) -> None:
        del self._states[state.key]
        self._by_tile[state.key[0]].remove(state)
        if not self._by_tile[state.key[0]]:
            del self._by_tile[state.key[0]]
        self.disk_bytes -= state.disk_bytes
        if state.in_memory:
            self._disown(state)
        self._orders.drops.append(state.number)

    def _own(self, state: KeptState, pages: tuple[int, ...]) -> None:
        state.pages = pages
        self._bytes[state.namespace] += state.size_bytes
        self._pages.keep(pages)

    def _disown(self, state: KeptState) -> None:
        self._bytes[state.namespace] -= state.size_bytes
        if not self._bytes[state.namespace]:
            del self._bytes[state.namespace]
        self._pages.let_go(state.pages)
        state.pages = ()
