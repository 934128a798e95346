"""What rank 0 and the others say each step: the plan, and proof that both ran the same. Knows no processes and no tensors.

A plan travels encoded; its digest covers the settings, the step's number, all that was chosen before and the plan's bytes.
"""

import hashlib
from typing import Protocol

import msgspec

from lockstep.core.plan import StepPlan, StepResult
from lockstep.core.rank_messages import HashState, Ran, RankHash, Run
from lockstep.run.settings import RankMismatch

_encoder = msgspec.msgpack.Encoder(order="deterministic")
_plans = msgspec.msgpack.Decoder(StepPlan)


class StepRunner(Protocol):
    """Executes plans; see `run.runner.Runner`."""

    def execute(self, plan: StepPlan) -> StepResult: ...
    def state_hash(self, request_id: str) -> str: ...


class Links(Protocol):
    """Rank 0's way to all other ranks; see `run.ranks.Ranks`."""

    def tell(self, message: Run | HashState) -> None: ...
    def hashes(self, request_id: str) -> list[str]: ...
    def ran(self) -> list[Ran]: ...


class LeadingRunner:
    """Rank 0: tells the others each plan, then runs its own share."""

    def __init__(self, runner: StepRunner, links: Links, settings: str) -> None:
        self._runner, self._links, self._settings = runner, links, settings
        self._steps, self._before = 0, ""

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step on every rank. A plan of nothing is told to nobody."""
        if plan == StepPlan():
            return StepResult()
        self._steps += 1
        encoded = _encoder.encode(plan)
        self._links.tell(Run(self._steps, encoded, self._before, plan_digest(self._settings, self._steps, self._before, encoded)))
        result = self._runner.execute(plan)
        self._before = chosen_digest(self._before, result)
        return result

    def ran(self) -> tuple[Ran, ...]:
        """The newest step each rank has reported, in rank order."""
        return (Ran(0, self._steps, self._before), *self._links.ran())

    def state_hash(self, request_id: str) -> str:
        """SHA-256 over the ranks' own hashes in rank order."""
        self._links.tell(HashState(request_id))
        every = [self._runner.state_hash(request_id), *self._links.hashes(request_id)]
        return hashlib.sha256("".join(every).encode()).hexdigest()


class Follower:
    """Another rank: runs what it is told after checking that it is what rank 0 runs."""

    def __init__(self, runner: StepRunner, rank: int, settings: str) -> None:
        self._runner, self._rank, self._settings = runner, rank, settings
        self._steps, self._before = 0, ""

    def run(self, message: Run) -> Ran:
        """Run one step. Raises RankMismatch, before running anything, if rank 0 is elsewhere or chose other tokens."""
        step = self._steps + 1
        if message.step != step:
            raise RankMismatch(f"rank {self._rank} was told step {message.step} after step {self._steps}; needed: step {step}")
        if message.before != self._before:
            raise RankMismatch(
                f"rank {self._rank} and rank 0 chose other tokens by step {self._steps}; needed: the same bits on every rank"
            )
        found = plan_digest(self._settings, step, self._before, message.plan)
        if message.digest != found:
            raise RankMismatch(
                f"rank {self._rank}: plan and settings of step {step} have digest {found}, on rank 0 {message.digest}; "
                "needed: the same settings and an intact plan"
            )
        self._steps = step
        self._before = chosen_digest(self._before, self._runner.execute(_plans.decode(message.plan)))
        return Ran(self._rank, step, self._before)

    def hash(self, message: HashState) -> RankHash:
        """Hash of this rank's share of a request's state."""
        return RankHash(message.request_id, self._runner.state_hash(message.request_id))


def plan_digest(settings: str, step: int, before: str, plan: bytes) -> str:
    """16 hex digits."""
    return hashlib.sha256(f"{settings} {step} {before} ".encode() + plan).hexdigest()[:16]


def chosen_digest(before: str, result: StepResult) -> str:
    """16 hex digits over everything chosen in a step and, by `before`, in all steps before it."""
    return hashlib.sha256(before.encode() + _encoder.encode(result)).hexdigest()[:16]
