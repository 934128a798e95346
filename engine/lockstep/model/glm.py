"""GLM-5.3-Flash, the text model: embedding, streams, layers, head, and the two ways rows go through them.

Knows no request, no sampling and no drafting; who owns slots and pages is the caller's business."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lockstep.cache import PAGE_TOKENS, Sequence, StateSlots, TokenPool, state_hash
from lockstep.cache.window import PromptTile, StepWindow
from lockstep.config.model import Attention, Mlp, ModelConfig, TextConfig
from lockstep.config.share import Share
from lockstep.kernels import host, hyper_connection
from lockstep.kernels.experts import GroupedExperts
from lockstep.kernels.hyper_connection import Site
from lockstep.kernels.linear import MAX_STEP_ROWS, PROMPT_ROWS, STEP_ROWS
from lockstep.layers.embedding import Embedding, Head
from lockstep.layers.exchange import ALONE, Exchange
from lockstep.layers.hyper import load_site
from lockstep.layers.kda import KdaAttention
from lockstep.layers.latent_attention import LatentAttention
from lockstep.layers.mlp import DenseMlp, SparseMlp
from lockstep.layers.norm import RmsNorm
from lockstep.layers.params import Params, WeightSource
from lockstep.layers.rows import RowMemory, Rows, TokenStore
from lockstep.model import slices
from lockstep.model.rounds import Opened, Rounds
from lockstep.model.rows import RowPlanner
from lockstep.weights.split import SplitWeights

TRUNK = "model.language_model."

Window = tuple[Sequence, Items[int]]


@dataclass(frozen=True, slots=True)
class RowOutput:
    """What a pass returns for R rows: `hidden [R, D]` after the final norm; `taps [len(taps), R, D]`, stream means after those layers.

    A tap numbered as the layer behind the last one is `hidden` itself. `logits` as of `GlmModel.head`, where the pass has them already."""

    hidden: Tensor
    taps: Tensor
    logits: Tensor | None = None


class DecoderLayer:
    """One trunk layer: attention and feed-forward, each inside a hyper-connection site."""

    def __init__(self, params: Params, config: TextConfig, index: int, attention: KdaAttention | LatentAttention) -> None:
        self.attention_site = load_site(params, "hc_attn", config)
        self.attention_norm = RmsNorm(params, "input_layernorm", config.hidden_size, config.rms_norm_eps)
        self.attention = attention
        self.mlp_site = load_site(params, "hc_ffn", config)
        self.mlp_norm = RmsNorm(params, "post_attention_layernorm", config.hidden_size, config.rms_norm_eps)
        sparse = config.mlp_kinds[index] is Mlp.SPARSE
        self.mlp = SparseMlp(params.under("mlp"), config) if sparse else DenseMlp(params.under("mlp"), config, config.intermediate_size)

    def __call__(
        self, flow: hyper_connection.Flow, following: Site, rows: Rows, memory: RowMemory | None, store: TokenStore | None
    ) -> None:
        """Take `flow` through the layer to the site that follows."""
        x = flow.enter(self.attention_norm.weight, self.attention_norm.eps)
        if isinstance(self.attention, KdaAttention):
            branch = self.attention(x, rows, memory)
        else:
            assert store is not None
            branch = self.attention(x, rows, memory, store)
        flow.leave(branch, self.mlp_site)
        flow.leave(self.mlp(flow.enter(self.mlp_norm.weight, self.mlp_norm.eps), rows), following)


class GlmModel:
    """The loaded model. `attach` it to its memory before running rows.

    Prompt tokens go through `run_prompt` in tiles of 64 rows on the absolute grid, generated tokens through `run_step` and `commit`. Every
    row's bits depend on the committed state and the rows before it in its tile or window only."""

    def __init__(self, params: Params, config: TextConfig) -> None:
        params.share.check(config)
        _refuse_ragged(config, params.share)
        self.config, self.device, self.dtype, self.exchange = config, params.device, params.dtype, params.exchange
        trunk = params.under(TRUNK.rstrip("."))
        self.embedding = Embedding(trunk, config)
        self.layers: list[DecoderLayer] = []
        counts = {Attention.KDA: 0, Attention.DSA: 0}
        for index, kind in enumerate(config.attention_kinds):
            layer = trunk.under(f"layers.{index}")
            own = layer.under("self_attn")
            attention = KdaAttention(own, config, counts[kind]) if kind is Attention.KDA else LatentAttention(own, config)
            self.layers.append(DecoderLayer(layer, config, index, attention))
            counts[kind] += 1
        self.norm = RmsNorm(trunk, "norm", config.hidden_size, config.rms_norm_eps)
        self._head = Head(trunk, "embed_tokens", config) if config.tie_word_embeddings else Head(params, "lm_head", config)
        self._open: tuple[list[Window], list[int], StepWindow | Opened] | None = None
        self.rounds: Rounds | None = None
        self.slices: slices.Slices | None = None

    @classmethod
    def load(
        cls,
        weights: WeightSource,
        config: ModelConfig,
        device: torch.device | str,
        dtype: torch.dtype = torch.float32,
        exchange: Exchange = ALONE,
    ) -> GlmModel:
        """Load from a checkpoint's tensors (`weights.Checkpoint`). `dtype` is the activation type: fp32 on the CPU, bf16 on CUDA.

        One rank of several passes its `exchange`; it then holds and computes its share, and its `hidden`, taps and logits are every rank's.
        """
        with torch.inference_mode():
            return cls(rank_params(weights, config.text, device, dtype, exchange), config.text)

    def attach(self, pool: TokenPool, slots: StateSlots) -> None:
        """Give the model its memory, made for the same configuration, device and dtype."""
        self.pool, self.slots = pool, slots
        self._planner = RowPlanner(self.config, pool)
        dsa = self.config.attention_kinds.count(Attention.DSA)
        stores = iter([TokenStore(pool.latents[layer], pool.pooled[layer], layer) for layer in range(dsa)])
        self._stores = [next(stores) if kind is Attention.DSA else None for kind in self.config.attention_kinds]
        grouped = all(isinstance(layer.mlp, DenseMlp) or isinstance(layer.mlp.experts, GroupedExperts) for layer in self.layers)
        if Rounds.run_here(self.config, slots, grouped):
            attentions = [layer.attention for layer in self.layers]
            self.rounds = Rounds(self.config, attentions, pool, slots, self._round, self.exchange)
            attending = [layer.attention for layer in self.layers if isinstance(layer.attention, LatentAttention)]
            # Shapes of which some product takes no more than a tile at a time gain nothing from slices.
            if all(attention.project.joined is not None for attention in attentions):
                self.slices = slices.Slices(self.config, attending, pool, slots)

    @torch.inference_mode()
    def run_prompt(
        self,
        sequence: Sequence,
        ids: Items[int],
        taps: Items[int] = (),
        pictures: Items[tuple[int, Tensor]] = (),
        every_row: bool = False,
    ) -> RowOutput:
        """Run and commit prompt tokens behind `sequence`; returns the last row's hidden `[1, D]`, with `every_row` that of all n rows, and
        the taps of all n rows.

        `pictures` are rows `[n, D]` that stand in for the embeddings of `ids` from some place on, of several pairs each its own.
        Raises ValueError if `sequence.length` is not a multiple of 64 (so only the last slice of a prompt may end off the grid), if
        `ids` is empty or if the pages do not cover it."""
        if sequence.length % PROMPT_ROWS or not ids:
            raise ValueError(
                f"prompt slice of {len(ids)} tokens at position {sequence.length}; "
                f"needed: at least one token, at a multiple of {PROMPT_ROWS}"
            )
        step, run = (PROMPT_ROWS, self._prompt_tile) if self.slices is None else (slices.MOST_ROWS, self._prompt_slice)
        outputs = [run(sequence, ids[at : at + step], taps, _within(pictures, at, step)) for at in range(0, len(ids), step)]
        hidden = torch.cat([output.hidden for output in outputs]) if every_row else outputs[-1].hidden[-1:]
        return RowOutput(hidden, torch.cat([output.taps for output in outputs], 1))

    def _prompt_tile(self, sequence: Sequence, ids: Items[int], taps: Items[int], pictures: Items[tuple[int, Tensor]]) -> RowOutput:
        rows = self._planner.plan([sequence], [ids], (1,) * len(ids), PROMPT_ROWS)
        tile = PromptTile(self.slots, sequence.slot, rows.count, rows.padded)
        output = self._forward(rows, tile, taps, pictures)
        tile.commit()
        sequence.length += rows.count
        return output

    def _prompt_slice(self, sequence: Sequence, ids: Items[int], taps: Items[int], pictures: Items[tuple[int, Tensor]]) -> RowOutput:
        assert self.slices is not None
        rows = self.slices.rows(sequence, ids)
        output = self._forward(rows, None, taps, pictures)
        self.slices.commit(rows)
        sequence.length += rows.count
        return output

    @torch.inference_mode()
    def run_step(self, windows: Items[Window], taps: Items[int] = ()) -> RowOutput:
        """Run one window of n >= 1 tokens per sequence as n serial steps would; rows come back window after window.

        Nothing is committed until `commit`; a further `run_step` without it forgets this one. At most 32 rows in all, each sequence once,
        else ValueError."""
        total = sum(len(ids) for _, ids in windows)
        if not windows or any(not ids for _, ids in windows) or total > MAX_STEP_ROWS:
            raise ValueError(f"{len(windows)} windows of {total} rows; needed: 1..{MAX_STEP_ROWS} rows, at least one a window")
        if len({sequence.slot for sequence, _ in windows}) != len(windows):
            raise ValueError(f"slots {[sequence.slot for sequence, _ in windows]}; needed: each sequence once")
        order = sorted(range(len(windows)), key=lambda w: -len(windows[w][1]))
        sequences, tokens = [windows[w][0] for w in order], [windows[w][1] for w in order]
        active = tuple(sum(len(ids) > step for ids in tokens) for step in range(len(tokens[0])))
        if self.rounds is not None:
            (hidden, kept, columns), opened = self.rounds.run(sequences, tokens, active, order, taps)
            self._open = (list(windows), order, opened)
            return RowOutput(hidden, kept, self._head.whole(columns))
        rows = self._planner.plan(sequences, tokens, active, host.padded(total, self.embedding.table, STEP_ROWS))
        window = StepWindow(self.slots, [sequence.slot for sequence in sequences], active, rows.padded)
        self._open = (list(windows), order, window)
        return _in_window_order(self._forward(rows, window, taps), order, active)

    @torch.inference_mode()
    def commit(self, windows: Items[Window], keep: Items[int]) -> None:
        """Keep the first `keep[w]` rows (0..n) of each window of the last `run_step`, whose `windows` these must be; else ValueError."""
        ran = [sequence.slot for sequence, _ in self._open[0]] if self._open else []
        if self._open is None or [sequence.slot for sequence, _ in windows] != ran:
            raise ValueError("commit without a run_step over the same windows; needed: run_step first, then one commit")
        if len(keep) != len(windows) or any(not 0 <= kept <= len(ids) for kept, (_, ids) in zip(keep, windows, strict=True)):
            raise ValueError(f"keep {list(keep)} for windows of {[len(ids) for _, ids in windows]} rows; needed: 0..n each")
        _, order, window = self._open
        self._open = None
        window.commit([keep[w] for w in order])
        for (sequence, _), kept in zip(windows, keep, strict=True):
            sequence.length += kept

    @torch.inference_mode()
    def head(self, hidden: Tensor) -> Tensor:
        """Logits fp32 `[R, V]` of final-norm rows `[R, D]`, including padding ids; each row's bits are independent of R."""
        return self._head(hidden)

    @torch.inference_mode()
    def logits(self, output: RowOutput) -> Tensor:
        """As `head` of the rows of a step."""
        return self._head(output.hidden) if output.logits is None else output.logits

    def _round(self, rows: Rows, taps: Items[int], order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        output = self._forward(rows, None, taps)
        hidden = output.hidden.index_select(0, order)
        return hidden, output.taps.index_select(1, order), self._head.part(hidden)

    @torch.inference_mode()
    def state_hash(self, sequence: Sequence) -> str:
        """See `cache.state_hash`."""
        return state_hash(sequence, self.pool, self.slots)

    @np.errstate(over="ignore")
    def _forward(self, rows: Rows, memory: RowMemory | None, taps: Items[int], pictures: Items[tuple[int, Tensor]] = ()) -> RowOutput:
        embedded = self.embedding(rows.ids)
        for at, picture in pictures:
            embedded[at : at + len(picture)] = picture
        # Nothing enters a site behind the last layer; the one named for it has no effect.
        sites = [layer.attention_site for layer in (*self.layers, self.layers[-1])]
        flow = hyper_connection.Flow(embedded.unsqueeze(1).repeat(1, self.config.hc_mult, 1), sites[0])
        kept = {}
        for index, (layer, store) in enumerate(zip(self.layers, self._stores, strict=True)):
            layer(flow, sites[index + 1], rows, memory, store)
            if index in taps:
                kept[index] = hyper_connection.collapse(flow.streams)[: rows.count]
        hidden = kept[len(self.layers)] = self.norm(hyper_connection.collapse(flow.streams))[: rows.count]
        return RowOutput(hidden, torch.stack([kept[index] for index in taps]) if taps else hidden.new_empty(0, *hidden.shape))


def rank_params(
    weights: WeightSource, config: TextConfig, device: torch.device | str, dtype: torch.dtype, exchange: Exchange = ALONE
) -> Params:
    """A checkpoint's tensors as this rank loads them."""
    share = exchange.share
    source = weights if share.ranks == 1 else SplitWeights(weights, share, share.splits_experts(config))
    return Params(source, "", torch.device(device), dtype, exchange)


def _within(pictures: Items[tuple[int, Tensor]], start: int, count: int) -> list[tuple[int, Tensor]]:
    """The parts of `pictures` in the `count` rows that begin at `start`, places counted from there."""
    parts = ((max(at - start, 0), rows[max(start - at, 0) : start + count - at]) for at, rows in pictures if at < start + count)
    return [(at, rows) for at, rows in parts if len(rows)]


def _refuse_ragged(config: TextConfig, share: Share) -> None:
    """Raise ValueError for widths at which vector code would end inside a row, so that a row's bits could depend on its place."""
    needs = {
        "linear heads x head_dim": (share.part(config.linear_num_heads) * config.linear_head_dim, 32),
        "n_routed_experts": (config.n_routed_experts, 4),
        "hidden_size": (config.hidden_size, 4),
        "intermediate_size": (share.part(config.intermediate_size), 4),
        "moe_intermediate_size": (share.expert_width(config), 4),
        "moe_intermediate_size * n_shared_experts": (share.part(config.shared_intermediate_size), 4),
    }
    for name, (found, multiple) in needs.items():
        if found % multiple:
            raise ValueError(f"{name} is {found} a rank; needed: a multiple of {multiple}, because rows are computed {STEP_ROWS} at a time")


def _in_window_order(output: RowOutput, order: list[int], active: tuple[int, ...]) -> RowOutput:
    """From step-by-step order of sorted windows to the caller's windows, one after the other."""
    owners = [(order[sorted_window], step) for step, count in enumerate(active) for sorted_window in range(count)]
    places = sorted(range(len(owners)), key=owners.__getitem__)
    if places == list(range(len(places))):
        return output
    index = torch.tensor(places, device=output.hidden.device)
    return RowOutput(output.hidden.index_select(0, index), output.taps.index_select(1, index))


assert PROMPT_ROWS == PAGE_TOKENS
