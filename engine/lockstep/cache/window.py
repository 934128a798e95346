"""What the rows of one forward pass see of the past and leave behind: convolution rows, indexer rows, recurrent states.

Two kinds: `StepWindow` (generated tokens, may be cut back to any number of rows) and `PromptTile` (prompt tokens, committed at once).
"""

from collections.abc import Sequence as Items
from functools import lru_cache
from itertools import accumulate

import torch
from torch import Tensor

from lockstep.cache.states import StateSlots
from lockstep.kernels import host, kda


def row_starts(active: Items[int]) -> list[int]:
    """First row of each step when rows are ordered step by step and step j has `active[j]` rows."""
    return list(accumulate(active, initial=0))[:-1]


@lru_cache(maxsize=512)
def source_index(active: tuple[int, ...], width: int, padded: int) -> tuple[tuple[int, ...], ...]:
    """Per row the `width` source rows that end with it, oldest first.

    A source holds `width` - 1 earlier rows of each of the active[0] sequences, then the pass's rows step by step, then padding rows, which
    see only themselves.
    """
    starts = row_starts(active)
    before = active[0] * (width - 1)
    rows = [ending_at(starts, before, width, sequence, step) for step, count in enumerate(active) for sequence in range(count)]
    return (*rows, *((before + row,) * width for row in range(len(rows), padded)))


def ending_at(starts: list[int], before: int, width: int, sequence: int, step: int) -> tuple[int, ...]:
    """The `width` source rows of `sequence` that end with its row of `step`; step -1 ends with the newest earlier row."""
    offsets = range(step - width + 1, step + 1)
    return tuple(before + starts[o] + sequence if o >= 0 else (sequence + 1) * (width - 1) + o for o in offsets)


class _Rows:
    """Source rows of convolution and indexer for one pass over S sequences."""

    def __init__(self, slots: StateSlots, places: list[int], active: tuple[int, ...], padded: int) -> None:
        self.slots, self.active, self.padded = slots, active, padded
        self.places = torch.tensor(places, device=slots.kda.device)
        self._conv = self._opened(slots.conv_tail)
        self._index = self._opened(slots.index_tail)

    def _opened(self, tail: Tensor) -> Tensor:
        layers, _, width, channels = tail.shape
        before = self.places.numel() * width
        source = tail.new_empty(layers, before + self.padded, channels)
        if host.runs(tail):
            earlier = host.parameter(tail).take(host.array(self.places), 1)
            host.parameter(source)[:, :before] = earlier.reshape(layers, before, channels)
            return source
        source[:, :before] = tail.index_select(1, self.places).view(layers, before, channels)
        return source

    def conv_source(self, layer: int, rows: Tensor) -> Tensor:
        """Add the pass's projections `rows [padded, 3 H d]` of KDA layer `layer`; returns all rows `source_index` points into."""
        return self._filled(self._conv, layer, rows)

    def index_source(self, layer: int, rows: Tensor) -> Tensor:
        """The same for the indexer's key and gate rows of DSA layer `layer`, `[padded, 2 index_head_dim]`."""
        return self._filled(self._index, layer, rows)

    def _filled(self, sources: Tensor, layer: int, rows: Tensor) -> Tensor:
        if host.runs(sources):
            held = host.parameter(sources)[layer]
            held[len(held) - self.padded :] = host.array(rows)
            return host.tensor(held)
        source = sources[layer]
        source[source.shape[0] - self.padded :] = rows
        return source

    def _store_tails(self, kept: list[tuple[int, int]]) -> None:
        """Make the rows before step `keep` of each (sequence, keep) the new earlier rows of that sequence."""
        places = self.places
        if len(kept) < len(places):
            places = places[[sequence for sequence, _ in kept]]
        for source, tail in ((self._conv, self.slots.conv_tail), (self._index, self.slots.index_tail)):
            rows = source.index_select(1, _kept_index(self.active, tuple(kept), tail.shape[2], source.device))
            tail.index_copy_(1, places, rows.view(tail.shape[0], len(kept), *tail.shape[2:]))


@lru_cache(maxsize=512)
def _kept_index(active: tuple[int, ...], kept: tuple[tuple[int, int], ...], width: int, device: torch.device) -> Tensor:
    """The `width` source rows before step `keep` of each (sequence, keep), one after the other."""
    starts, before = row_starts(active), active[0] * width
    index = [ending_at(starts, before, width + 1, sequence, keep - 1)[1:] for sequence, keep in kept]
    return torch.tensor(index, device=device).view(-1)


class StepWindow(_Rows):
    """Windows of S sequences on the step path, sorted by length, longest first.

    Reads each sequence's committed state and writes the state after its whole window beside it; `commit` decides what stays.
    """

    def __init__(self, slots: StateSlots, places: list[int], active: tuple[int, ...], padded: int) -> None:
        super().__init__(slots, places, active, padded)
        self.host_places = places
        self._base, self._scratch = slots.copies(places)
        self._saved: dict[int, kda.RowInputs] = {}

    def delta_rule(self, layer: int, rows: kda.RowInputs) -> Tensor:
        """Outputs `[padded, H, dv]` of KDA layer `layer` for its inputs (see `kernels.kda.step_window`); padding rows are 0."""
        self._saved[layer] = rows
        out = torch.zeros_like(rows[2]) if sum(self.active) < self.padded else torch.empty_like(rows[2])
        kda.step_window(self.slots.kda[layer], self._base, self._scratch, rows, self.active, out)
        return out

    def commit(self, keep: list[int]) -> None:
        """Make exactly `keep[s]` rows of sequence s committed, 0 <= keep[s] <= its window."""
        lengths = [sum(count > sequence for count in self.active) for sequence in range(len(keep))]
        cut = [sequence for sequence, kept in enumerate(keep) if 0 < kept < lengths[sequence]]
        if cut:
            self._replay(sorted(cut, key=lambda sequence: -keep[sequence]), keep)
        kept = [(sequence, count) for sequence, count in enumerate(keep) if count]
        if kept:
            self._store_tails(kept)
        for sequence, _ in kept:
            self.slots.flip(self.host_places[sequence])

    def _replay(self, cut: list[int], keep: list[int]) -> None:
        # exact: the same routine over the same saved inputs, so the state has the bits of `keep` serial steps.
        starts = row_starts(self.active)
        active = [sum(keep[sequence] > step for sequence in cut) for step in range(keep[cut[0]])]
        index = [starts[step] + sequence for step, count in enumerate(active) for sequence in cut[:count]]
        rows, which = (torch.tensor(values, device=self.places.device) for values in (index, cut))
        base, scratch = self._base[which], self._scratch[which]
        for layer, saved in self._saved.items():
            q, k, v, decay, beta = (values.index_select(0, rows) for values in saved)
            kda.step_window(self.slots.kda[layer], base, scratch, (q, k, v, decay, beta), active, torch.empty_like(v))


class PromptTile(_Rows):
    """One tile of prompt rows of one sequence; `rows` of the tile's rows carry tokens."""

    def __init__(self, slots: StateSlots, place: int, rows: int, padded: int) -> None:
        super().__init__(slots, [place], (1,) * rows, padded)
        self._rows = rows
        self._at = slots.committed(place)

    def delta_rule(self, layer: int, rows: kda.RowInputs) -> Tensor:
        """As `StepWindow.delta_rule`, in chunk form; the state is committed at once."""
        for values in rows[3:]:
            values[self._rows :] = 0
        state = self.slots.kda[layer, self._at]
        out, after = kda.prompt_tile(state, rows)
        state.copy_(after)
        return out

    def commit(self) -> None:
        """Keep the tile's last rows for the next pass."""
        self._store_tails([(0, self._rows)])
