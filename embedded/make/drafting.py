"""Trains and measures both drafters on a trunk that stays as it is. Knows the two drafters' outputs, not their layers.

What counts as right is what the trunk itself would say: a token trains a drafter only as long as the trunk's greedy choice agrees
with the text from the pending token on, which makes the text the trunk's own reply.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from embedded.make.batch import Batch
from embedded.make.data.encoding import Encoder
from embedded.make.drafter import Drafter, initial
from embedded.make.greedy import Prompt, complete, prompts, row_batch
from embedded.make.model import Model
from embedded.make.trainer import REPLY, Stage
from torch import Tensor

from checkpoints.sizes import Sizes, drafter_config
from lockstep.config.drafter import parse_drafter_config

ANCHORS = 3072
MTP_DEPTH = 3
FADE = 0.85
KINDS = {
    "prose": ("explanation", "greeting"),
    "code": ("program",),
    "count": ("count",),
    "json": ("json_object", "records"),
    "calls": ("tool_call",),
}
BINS = 10
LONGEST_REPLY, MEASURE_SEED = 160, 11


def block_labels(batch: Batch, agrees: Tensor, anchors: Tensor, drafts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of each anchor: the tokens before each draft `[A, drafts]`, the drafts' labels, and fp32 weights, zero behind the first place
    that is no reply of this document or that the trunk would not have said."""
    ahead = anchors[:, None] + torch.arange(1, drafts + 1, device=anchors.device)
    inside = ahead < len(batch.ids)
    ahead = ahead.clamp(max=len(batch.ids) - 1)
    good = inside & (batch.document[ahead] == batch.document[anchors][:, None]) & (batch.kind[ahead] == REPLY) & agrees[ahead]
    fade = FADE ** torch.arange(drafts, device=anchors.device)
    return batch.ids[ahead - 1], batch.ids[ahead], torch.cumprod(good.float(), 1) * fade


def pick_anchors(batch: Batch) -> Tensor:
    """`ANCHORS` flat indices of pending tokens whose next token is part of a reply; some come twice if there are too few."""
    places = torch.nonzero((batch.kind_ahead(1) == REPLY) & (batch.ahead(1) >= 0))[:, 0]
    return places[torch.randint(len(places), (ANCHORS,), device=places.device)]


def drafter_of(model: Model, device: str, seed: int) -> Drafter:
    """A fresh drafter for the trunk; its tensors ask for gradients."""
    config = parse_drafter_config(drafter_config(Sizes()), model.text)
    return Drafter(config, {name: value.detach().to(device).requires_grad_() for name, value in initial(config, seed).items()})


def block_loss(model: Model, drafter: Drafter, batch: Batch, taps: list[Tensor], agrees: Tensor) -> Tensor:
    """Loss of the drafter on random blocks of a batch. Nothing flows back into the trunk."""
    anchors, embed = pick_anchors(batch), model.embed.detach()
    previous, label, weight = block_labels(batch, agrees, anchors, drafter.config.drafts)
    hidden = drafter.block(torch.cat(taps, -1).detach(), embed, batch.ids, batch.position, anchors)
    return drafter.losses(hidden, embed, previous, label, weight)


def tokens_per_round(accepted: list[int], length: int) -> tuple[int, int]:
    """Tokens and rounds of one reply: `accepted[n]` drafts hold when the reply's token n is pending; token 0 comes from the prompt."""
    at, rounds = 0, 0
    while at < length - 1:
        at += min(accepted[at], length - 2 - at) + 1
        rounds += 1
    return length - 1, rounds


def _chain(model: Model, batch: Batch, hidden: Tensor) -> list[Tensor]:
    """Drafts of the MTP layer at each place, `MTP_DEPTH` tensors [N]: draft d at row t + d - 1 is for token t + d + 1.

    True tokens are fed in place of drafts: a draft only counts while those before it equal the true ones.
    """
    following, first, drafts = torch.roll(batch.ids, -1), hidden, []
    start = (batch.position == 0)[:, None]
    for _ in range(MTP_DEPTH):
        with torch.enable_grad():
            out = model.mtp(hidden.requires_grad_(), following, batch).hidden.detach()
        drafts.append(model.logits(out).argmax(-1))
        hidden = torch.where(start, first, torch.roll(out, 1, 0))
    return drafts


@dataclass(slots=True)
class Tally:
    """Tokens and rounds per drafter of one kind of text, and over all kinds what the block drafter's confidence promised and kept."""

    totals: dict[str, list[int]] = field(default_factory=lambda: {"mtp": [0, 0], "dflash": [0, 0]})
    drafts: np.ndarray = field(default_factory=lambda: np.zeros(BINS, int))
    held: np.ndarray = field(default_factory=lambda: np.zeros(BINS, int))

    def add(self, name: str, accepted: list[int], size: int) -> None:
        """`accepted[n]`: drafts that hold when token n of a reply of `size` tokens is pending."""
        for place, value in enumerate(tokens_per_round(accepted, size)):
            self.totals[name][place] += value

    def add_confidence(self, confidence: np.ndarray, accepted: list[int]) -> None:
        """`confidence [size, drafts]`; counts the drafts that verification would look at, up to the first that fails."""
        size = len(accepted)
        for n, kept in enumerate(accepted):
            for d in range(min(kept + 1, confidence.shape[1], size - 1 - n)):
                place = min(BINS - 1, int(confidence[n, d] * BINS))
                self.drafts[place] += 1
                self.held[place] += d < kept


def _run_length(same: np.ndarray) -> int:
    return int(np.cumprod(same).sum())


def _measure_replies(model: Model, drafter: Drafter, part: list[Prompt], batch: Batch, tally: Tally) -> None:
    """Adds the drafts at every place of the replies, which stand behind their prompts in `batch`, one a row."""
    with torch.enable_grad():  # the compiled functions of training serve
        trunk = model.trunk(batch, drafter.config.target_layer_ids)
    taps, hidden = torch.cat(trunk.taps, -1).detach(), trunk.hidden.detach()
    chain = torch.stack(_chain(model, batch, hidden)).cpu().numpy()
    ids = batch.ids.cpu().numpy()
    for row, prompt in enumerate(part):
        size = len(prompt.got)
        begin = row * batch.length + len(prompt.ids) - size
        anchors = torch.arange(begin, begin + size, device=batch.ids.device)
        block = drafter.block(taps, model.embed, batch.ids, batch.position, anchors)
        path, confidence = (t.cpu().numpy() for t in drafter.walk(block, model.embed, batch.ids[anchors]))
        long, short = [], []
        for n in range(size):
            after = ids[begin + n + 1 : begin + size]
            long.append(_run_length(path[n, : len(after)] == after[: path.shape[1]]))
            depth = min(MTP_DEPTH, len(after))
            short.append(_run_length(np.array([chain[d, begin + n - 1 + d] == after[d] for d in range(depth)], bool)))
        tally.add("dflash", long, size)
        tally.add("mtp", short, size)
        tally.add_confidence(confidence, long)


@torch.no_grad()
def measure(stage: Stage, drafter: Drafter, encoder: Encoder, per_kind: int) -> dict[str, float]:
    """Tokens per round on the trunk's greedy replies to held-out prompts, per kind of text; logs them with a confidence histogram."""
    result: dict[str, float] = {}
    rows, length, device = max(1, stage.feed.tokens // stage.feed.length), stage.feed.length, stage.feed.device
    stops = frozenset(stage.model.text.eos_token_ids)
    tally = Tally()
    for kind, tasks in KINDS.items():
        part = prompts(encoder, tasks, max(1, min(per_kind, rows // len(tasks))), length, MEASURE_SEED)
        complete(stage.model, part, rows, length, device, stops, LONGEST_REPLY)
        for prompt in part:
            prompt.ids += prompt.got
        tally.totals = Tally().totals
        _measure_replies(stage.model, drafter, part, row_batch(part, rows, length, device), tally)
        result |= {f"{name}_{kind}": tokens / max(1, rounds) for name, (tokens, rounds) in tally.totals.items()}
    for name in ("mtp", "dflash"):
        result[name] = float(np.mean([result[f"{name}_{kind}"] for kind in KINDS]))
    stage.log.write(**result)
    stage.log.write(confidence_bins=tally.drafts.tolist(), held=(tally.held / np.maximum(tally.drafts, 1)).round(3).tolist())
    return result
