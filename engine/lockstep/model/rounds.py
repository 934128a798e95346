"""Steps on a CUDA device: what a step is told lies in one piece of memory, so that its launches are captured once for a number of rows.

Replays of a captured step and plain runs of it (`graphs` False) are the same launches over the same memory. Computes nothing of the model.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lockstep.cache import PAGE_TOKENS, Sequence, StateSlots, TokenPool
from lockstep.cache.window import row_starts
from lockstep.config.model import TextConfig
from lockstep.kernels import round as plans
from lockstep.kernels.indexer import paged as indexing
from lockstep.kernels.kda import chain
from lockstep.kernels.latent_attention import paged
from lockstep.kernels.round import Round
from lockstep.layers.exchange import Exchange, every_rank
from lockstep.layers.kda import KdaAttention
from lockstep.layers.latent_attention import LatentAttention
from lockstep.layers.rows import Rows

BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
Outputs = tuple[Tensor, Tensor, Tensor]
Forward = Callable[[Rows, Items[int], Tensor], Outputs]
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Captured:
    """A step of some number of rows: what it is told, and what comes out of it: hidden rows, taps, this rank's logits."""

    at: Round
    rows: Rows
    order: Tensor
    graph: torch.cuda.CUDAGraph | None = None
    out: Outputs | None = None


class Rounds:
    """Steps of one model over one pool and its slots.

    `forward` computes hidden rows, taps and this rank's logits from rows, the layers tapped, and the order in which rows are to come back.
    Steps are captured if what `exchange` does may be."""

    def __init__(
        self,
        config: TextConfig,
        attentions: Items[KdaAttention | LatentAttention],
        pool: TokenPool,
        slots: StateSlots,
        forward: Forward,
        exchange: Exchange,
    ) -> None:
        self.graphs = exchange.captured
        self._exchange = exchange
        self._config, self._pool, self._slots, self._forward = config, pool, slots, forward
        self._kda = [one for one in attentions if isinstance(one, KdaAttention)]
        self._attending = [one for one in attentions if isinstance(one, LatentAttention)]
        self._pages = torch.zeros(slots.slots, pool.pages, dtype=torch.int32, device=slots.kda.device)
        self._listed: list[list[int]] = [[] for _ in range(slots.slots)]
        self._table = chain.table_of([one.mixer for one in self._kda], slots.kda.device) if self._kda else self._pages
        self._memory = torch.cuda.graph_pool_handle() if slots.kda.is_cuda else None
        self._kept: dict[tuple[int, bool, tuple[int, ...]], _Captured] = {}
        self._scores: Tensor | None = None

    @staticmethod
    def run_here(config: TextConfig, slots: StateSlots, grouped: bool) -> bool:
        """True if steps of such a model are built from our own kernels; `grouped` says so of its experts."""
        kda = config.linear_head_dim in chain.WIDTHS and config.linear_conv_kernel == chain.TAPS and slots.kda.shape[2] % 4 == 0
        pools = config.index_kpool == 4
        widths = config.kv_lora_rank % 64 == 0 and config.index_head_dim in (32, 64, 128) and config.index_n_heads % 8 == 0
        heads = config.num_attention_heads <= 32 or config.num_attention_heads % 32 == 0
        return slots.kda.is_cuda and slots.conv_tail.dtype is torch.bfloat16 and kda and pools and widths and heads and grouped

    def run(
        self, sequences: Items[Sequence], tokens: Items[Items[int]], active: tuple[int, ...], order: Items[int], taps: Items[int]
    ) -> tuple[Outputs, "Opened"]:
        """Run windows sorted by length, see `RowPlanner.plan`. Outputs come in the order of the caller's windows, `order` of these."""
        count = sum(active)
        positions = [sequences[owner].length + step for step, many in enumerate(active) for owner in range(many)]
        scored = max(positions) + 1 >= self._config.index_kpool * (self._config.pools_per_row + 1)
        held = self._captured(next(rows for rows in BUCKETS if rows >= count), scored, tuple(taps))
        self._tell(held, sequences, tokens, active, positions, order)
        if held.out is None:
            # What is decided or compiled at first use must not fall into a capture.
            held.out = self._forward(held.rows, taps, held.order)
            if self.graphs:
                self._capture(held, taps, count)
        elif held.graph is not None and self.graphs:
            held.graph.replay()
        else:
            held.out = self._forward(held.rows, taps, held.order)
        return _first(held.out, count), Opened(self, held.at, [one.slot for one in sequences])

    def _capture(self, held: _Captured, taps: Items[int], count: int) -> None:
        """Capture the step that has just run plainly, and run it so. Steps stay plain from here on unless that gives the same bits."""
        assert held.out is not None
        graph, out, fault, device = torch.cuda.CUDAGraph(), held.out, "", held.order.device
        torch.cuda.synchronize()
        try:
            # The library between ranks asks for its events from a thread of its own, which must not end a capture.
            with torch.cuda.graph(graph, self._memory, capture_error_mode="thread_local"):
                out = self._forward(held.rows, taps, held.order)
        except RuntimeError as error:
            fault = f"it cannot be captured: {error}"
        # What another rank cannot do stays plain here too: a replay waits for the other's.
        if every_rank(self._exchange, not fault, device):
            graph.replay()
            if not all(map(torch.equal, _first(out, count), _first(held.out, count))):
                fault = "a replay gives other bits than plain launches"
            if every_rank(self._exchange, not fault, device):
                held.graph, held.out = graph, out
                return
        self.graphs = False
        log.warning("steps of %d rows stay plain launches, which is slower: %s", held.at.rows, fault or "another rank refuses")

    def _captured(self, rows: int, scored: bool, taps: tuple[int, ...]) -> _Captured:
        key = rows, scored, taps
        if key not in self._kept:
            slots, most = self._slots, min(rows, self._slots.slots)
            device, kind = slots.kda.device, slots.conv_tail.dtype
            with torch.inference_mode(False):
                plan = torch.zeros(plans.plan_size(rows, most) + rows, dtype=torch.int32, device=device)
                projected = torch.zeros(len(self._kda), rows, self._pitch(), dtype=kind, device=device)
                raw = torch.zeros(len(self._attending), rows, slots.index_tail.shape[3], dtype=kind, device=device)
                if scored and self._scores is None:
                    reach = min(self._pool.pages * self._pool.pools_per_page, indexing.MOST_POOLS)
                    self._scores = torch.empty(BUCKETS[-1], reach, device=device)
            scores = self._scores[:rows] if scored and self._scores is not None else None
            at = Round(rows, most, plan, self._pages, slots.kda, slots.conv_tail, slots.index_tail, projected, raw, scores)
            none = plan[:0]
            own = Rows(rows, rows, plan[plans.HEAD : plans.HEAD + rows], (), none, none, none, none, none, none, (), at)
            self._kept[key] = _Captured(at, own, plan[-rows:])
        return self._kept[key]

    def graph(self, rows: int) -> torch.cuda.CUDAGraph:
        """The graph of steps of `rows` rows that was captured first."""
        return next(held.graph for key, held in self._kept.items() if key[0] == rows and held.graph is not None)

    def _pitch(self) -> int:
        heads, width = self._slots.kda.shape[2:4]
        return 3 * heads * width + 2 * width + heads

    def _tell(
        self,
        held: _Captured,
        sequences: Items[Sequence],
        tokens: Items[Items[int]],
        active: tuple[int, ...],
        positions: list[int],
        order: Items[int],
    ) -> None:
        at, pool, rows, count = held.at, self._pool, held.at.rows, len(positions)
        pairs = [(owner, step) for step, many in enumerate(active) for owner in range(many)]
        told = np.zeros(plans.plan_size(rows, at.most) + rows, np.int32)
        told[:3] = count, len(sequences), len(active)
        fields = told[plans.HEAD : plans.HEAD + plans.FIELDS * rows].reshape(plans.FIELDS, rows)
        fields[1], fields[4], fields[5] = -1, pool.spare_page * PAGE_TOKENS, pool.spare_page * pool.pools_per_page
        pages = [sequences[owner].pages[position // PAGE_TOKENS] for (owner, _), position in zip(pairs, positions, strict=True)]
        within = np.array(positions) % PAGE_TOKENS
        fields[0, :count] = [tokens[owner][step] for owner, step in pairs]
        fields[1, :count], fields[2:4, :count] = positions, np.array(pairs).T
        fields[4, :count] = np.array(pages) * PAGE_TOKENS + within
        ends = within % self._config.index_kpool == self._config.index_kpool - 1
        fields[5, :count][ends] = (np.array(pages) * pool.pools_per_page + within // self._config.index_kpool)[ends]
        rest = told[plans.HEAD + plans.FIELDS * rows :]
        rest[: len(active) + 1] = [*row_starts(active), count]
        copies = [self._slots.committed(one.slot) for one in sequences]
        by_sequence = rest[rows + 1 : rows + 1 + plans.SEQUENCE_FIELDS * at.most].reshape(plans.SEQUENCE_FIELDS, at.most)
        by_sequence[:3, : len(sequences)] = [one.slot for one in sequences], copies, [copy ^ 1 for copy in copies]
        # Where each row of the caller's windows is computed.
        told[-rows:] = np.arange(rows)
        told[-rows : len(told) - rows + count] = sorted(range(count), key=lambda row: (order[pairs[row][0]], pairs[row][1]))
        self._send(at.plan, told)
        self._list_pages(sequences)

    def _list_pages(self, sequences: Items[Sequence]) -> None:
        for row, sequence in enumerate(sequences):
            if self._listed[row] != sequence.pages:
                self._listed[row] = list(sequence.pages)
                self._send(self._pages[row, : len(sequence.pages)], np.array(sequence.pages, np.int32))

    def _send(self, target: Tensor, values: np.ndarray) -> None:
        # A copy from pageable memory has left it when the call returns.
        target.copy_(torch.from_numpy(values), non_blocking=True)

    def keep(self, at: Round, keep: list[int]) -> None:
        """Make `keep[s]` rows of each sequence of the last step over `at` committed."""
        first = plans.keeps_at(at.rows, at.most)
        self._send(at.plan[first : first + len(keep)], np.array(keep, np.int32))
        if self._kda:
            chain.commit(at, self._table, self._kda[0].mixer.bound)
        if self._attending:
            paged.commit(at, self._attending[0].kernels(self._pool.latents.dtype is torch.uint8, at.plan.device))

    def flip(self, slot: int) -> None:
        """The state behind the window becomes the committed one."""
        self._slots.flip(slot)


def _first(out: Outputs, count: int) -> Outputs:
    hidden, kept, logits = out
    return hidden[:count], kept[:, :count], logits[:count]


@dataclass(frozen=True, slots=True)
class Opened:
    """A step that has run and is not committed."""

    rounds: Rounds
    at: Round
    places: list[int]

    def commit(self, keep: list[int]) -> None:
        """See `cache.window.StepWindow.commit`."""
        self.rounds.keep(self.at, keep)
        for place, kept in zip(self.places, keep, strict=True):
            if kept:
                self.rounds.flip(place)
