"""One stage of training: steps until the time budget is spent, with evaluation and saving. Knows no command line.

What a step minimises is given by the caller; the loop, the schedule, the experts' balance and the files are here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from embedded.make.batch import NOT_A_LABEL, Batch, Source
from embedded.make.data.encoding import Encoder
from embedded.make.greedy import prompts, run
from embedded.make.layers import Weights
from embedded.make.model import Model, Trunk
from embedded.make.optimiser import Optimiser, rate_at
from embedded.make.state import Log, Means, save
from torch import Tensor

GIVEN_WEIGHT, MTP_WEIGHT, REPLY = 0.1, 0.2, 2
BIAS_STEP = 2e-3
# EXL3 at 4 bits leaves about this relative error on a weight.
EXL3_NOISE = 0.067
LOG_EVERY = 100
QUICK_TASKS = (
    "exact_word", "count", "sum", "edit", "greeting", "fact", "json_object", "records", "program", "explanation",
    "tool_call", "parallel_calls", "no_call", "needle", "one_shape", "two_shapes", "how_many", "clip",
)  # fmt: skip


def weights_of_labels(batch: Batch, distance: int, given: float) -> Tensor:
    """fp32 [N]: how much each token's prediction counts, replies 1 and prompts `given`."""
    kind = batch.kind_ahead(distance)
    weight = torch.where(kind == REPLY, 1.0, given)
    return weight * (batch.ahead(distance) != NOT_A_LABEL)


@dataclass(slots=True)
class Stage:
    """A running stage. `minutes` bounds training; evaluation and saving follow. `groups` are trained tensors, each with its peak rate."""

    model: Model
    feed: Source
    log: Log
    out: Path
    minutes: float
    groups: list[tuple[Weights, float]]
    long_from: float = 0.5
    noise_from: float | None = None
    given_weight: float = GIVEN_WEIGHT
    balances: bool = True
    warm_steps: int = 100
    adam_eps: float = 1e-10
    means: Means = field(default_factory=Means)

    def loop(self, objective: Callable[[Batch, int], Tensor]) -> int:
        """Steps until the budget is spent; returns their number."""
        optimisers, step, began = [(Optimiser.of(weights, self.adam_eps), peak) for weights, peak in self.groups], 0, self.log.seconds
        budget, seen, marked = self.minutes * 60, 0, began
        while (share := (self.log.seconds - began) / budget) < 1:
            is_long = share >= self.long_from and step % round(1 / self.feed.long_share) == 0
            batch = self.feed.batch(is_long)
            noise = self._shake(share)
            objective(batch, step).backward()
            self._calm(noise)
            for optimiser, peak in optimisers:
                optimiser.step(rate_at(share, step, peak, warm=self.warm_steps))
            seen += len(batch.ids)
            step += 1
            if step % LOG_EVERY == 0 or step in (1, 2, 3, 10):
                values = self.means.read()
                now = self.log.seconds
                self.log.write(step=step, share=share, speed=round(seen / (now - marked)), rounds=self.feed.rounds, **values)
                seen, marked = 0, now
                if any(value != value for value in values.values()):
                    raise FloatingPointError(
                        f"step {step}: a loss is not a number; lower the peak rates {[peak for _, peak in self.groups]}"
                    )
        return step

    def _shake(self, share: float) -> list[Tensor]:
        if self.noise_from is None or share < self.noise_from:
            return []
        experts = self._experts()
        noise = [torch.randn_like(value) * (EXL3_NOISE * value.detach().square().mean((1, 2), keepdim=True).sqrt()) for value in experts]
        with torch.no_grad():
            torch._foreach_add_(experts, noise)  # pyright: ignore[reportPrivateImportUsage]
        return noise

    def _calm(self, noise: list[Tensor]) -> None:
        if noise:
            with torch.no_grad():
                torch._foreach_sub_(self._experts(), noise)  # pyright: ignore[reportPrivateImportUsage]

    def _experts(self) -> list[Tensor]:
        return [value for weights, _ in self.groups for name, value in weights.items() if ".experts." in name]

    @torch.no_grad()
    def balance(self, loads: dict[str, Tensor]) -> None:
        """Moves each expert's correction bias towards equal load (the published method without an extra loss)."""
        for prefix, load in loads.items() if self.balances else ():
            bias = self.model.weights[f"{prefix}mlp.gate.e_score_correction_bias"]
            bias += BIAS_STEP * torch.sign(load.mean() - load)
            bias -= bias.mean()

    def language_loss(self, batch: Batch, mtp_depth: int, taps: tuple[int, ...] = ()) -> tuple[Tensor, Trunk, Tensor]:
        """Next token, `mtp_depth` chained tokens after it through the MTP layer, and what the indexers learn.

        Also the trunk pass, and per token whether the trunk's greedy choice for it is the text's."""
        trunk = self.model.trunk(batch, taps)
        label, weight = batch.ahead(1), weights_of_labels(batch, 1, self.given_weight)
        each, right = self.model.score(trunk.hidden, self.model.embed, label)
        reply = (weight == 1.0).float()
        loss = (each * weight).sum() / weight.sum()
        self.means.add(
            loss=(each * reply).sum() / reply.sum(), right=(right * reply).sum() / reply.sum(), index=torch.as_tensor(trunk.indexer_loss)
        )
        self.balance(trunk.loads)
        loss = loss + trunk.indexer_loss
        if mtp_depth:
            loss = loss + MTP_WEIGHT * self.mtp_loss(trunk, batch, mtp_depth)
        return loss, trunk, torch.roll(right, 1)

    def mtp_loss(self, trunk: Trunk, batch: Batch, depth: int) -> Tensor:
        """Mean loss of `depth` chained MTP steps, fed with the true tokens."""
        following, hidden, total = torch.roll(batch.ids, -1), trunk.hidden, torch.zeros((), device=batch.ids.device)
        start = (batch.position == 0)[:, None]
        for step in range(1, depth + 1):
            result = self.model.mtp(hidden, following, batch)
            # a row at distance `step - 1` from the trunk predicts two ahead of its own place, whatever the depth
            weight = weights_of_labels(batch, 2, self.given_weight) * (batch.position >= step - 1)
            each, right = self.model.score(result.hidden, self.model.embed, batch.ahead(2))
            total = total + (each * weight).sum() / weight.sum() + result.indexer_loss
            reply = (weight == 1.0).float()
            self.means.add(**{f"mtp{step}": (right * reply).sum() / reply.sum()})
            self.balance(result.loads)
            hidden = torch.where(start, trunk.hidden, torch.roll(result.hidden, 1, 0))
        return total / depth

    def evaluate(
        self, encoder: Encoder, count: int, tasks: tuple[str, ...] = QUICK_TASKS, long: int = 8, seed: int = 7
    ) -> dict[str, float]:
        """Exact greedy replies per held-out task; needles in long rows under `long_needle`. A `count` of 0 asks nothing."""
        if not count:
            return {}
        stops = frozenset(self.model.text.eos_token_ids)
        length, device = self.feed.length, self.feed.device
        result = run(self.model, prompts(encoder, tasks, count, length, seed), self.feed.tokens // length, length, device, stops)
        if long:
            length = self.feed.long_length
            waiting = prompts(encoder, ("long_needle",), long, length, seed)
            result |= run(self.model, waiting, max(1, self.feed.tokens // length), length, device, stops)
        self.log.write(**result)
        return result

    def save(self) -> None:
        """All of the model's tensors."""
        save(self.out, "model", self.model.weights)
