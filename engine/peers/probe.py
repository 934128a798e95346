"""Do bytes really pass between two devices, and sums between two ranks? Asked in processes that can be killed, before any model is there.

A driver that promises peer access is no proof: transfers may hang or bring other bytes. Knows no plan and no model.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch
from torch import Tensor

from lockstep.channel.client import death_cause
from lockstep.config.share import Share
from lockstep.run.exchange import TorchExchange, meet, meeting

RANKS = 2
BYTES = {"cpu": 1 << 20, "cuda": 64 << 20}
# Importing torch and meeting the other rank come before the first stage.
BEGIN_S = 120.0
_END_S = 2.0


class WrongBytes(Exception):
    """What came is not what was sent."""


@dataclass(frozen=True)
class Stage:
    """One question: both ranks run `act(exchange, device)`, which returns how many bytes passed, or raises WrongBytes."""

    name: str
    act: Callable[[TorchExchange, str], int]


@dataclass(frozen=True)
class Verdict:
    """`cause` is "" where all is well. `gib_s` is how fast each stage was, by its name."""

    cause: str
    gib_s: dict[str, float]


def pattern(rank: int, device: str) -> Tensor:
    """Bytes `[1, n]` that only this rank sends."""
    made = torch.randint(0, 256, (1, BYTES[device]), dtype=torch.uint8, generator=torch.Generator().manual_seed(rank + 1))
    return made.to(f"cuda:{rank}" if device == "cuda" else device)


def compare(what: str, came: Tensor, sent: Tensor) -> None:
    """Raises WrongBytes with how many differ and the first of them."""
    wrong = (came != sent).view(-1).nonzero().view(-1)
    if len(wrong):
        first = int(wrong[0])
        told = f"{len(wrong)} of {sent.numel()} differ, the first at {first}: {came.view(-1)[first]} came, {sent.view(-1)[first]} was sent"
        raise WrongBytes(f"{what}: {told}")


def copy(exchange: TorchExchange, device: str) -> int:
    """Direct copies from this rank's device to the other's and back, without any library between."""
    rank, sent = exchange.share.rank, pattern(exchange.share.rank, device)
    other = f"cuda:{1 - rank}"
    there = sent.to(other)
    torch.cuda.synchronize(other)
    compare(f"copied from cuda:{rank} to {other}", there.cpu(), sent.cpu())
    compare(f"copied back from {other} to cuda:{rank}", there.to(sent.device).cpu(), sent.cpu())
    return 2 * sent.numel()


def gather(exchange: TorchExchange, device: str) -> int:
    """Each rank's bytes at the other, through the library that serving uses."""
    came = exchange.join(pattern(exchange.share.rank, device)).cpu().view(RANKS, -1)
    for rank in range(RANKS):
        compare(f"gathered from rank {rank}", came[rank], pattern(rank, device).cpu().view(-1))
    return came.numel()


def all_reduce(exchange: TorchExchange, device: str) -> int:
    """The sum of both ranks' numbers; whole numbers, so that it is exact."""
    own = pattern(exchange.share.rank, device).float()
    wanted = sum((pattern(rank, device).cpu().float() for rank in range(RANKS)), torch.zeros(()))
    compare("sum of both ranks", exchange.add(own).cpu(), wanted)
    return RANKS * own.numel() * 4


STAGES = {
    "cpu": (Stage("gather", gather), Stage("all-reduce", all_reduce)),
    "cuda": (Stage("copy", copy), Stage("gather", gather), Stage("all-reduce", all_reduce)),
}


def probe(device: str, timeout_s: float, stages: Sequence[Stage] = ()) -> Verdict:
    """Ask both ranks every stage, each for at most `timeout_s`. Leaves no process behind, however it ends."""
    if device == "cuda" and torch.cuda.device_count() < RANKS:
        return Verdict(f"{torch.cuda.device_count()} GPUs are visible; needed: {RANKS}", {})
    stages = stages or STAGES[device]
    context = multiprocessing.get_context("spawn")
    ranks: list[tuple[BaseProcess, Connection]] = []
    address = meeting()
    for rank in range(RANKS):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(rank, address, device, timeout_s, tuple(stages), theirs), daemon=True)
        process.start()
        theirs.close()
        ranks.append((process, ours))
    try:
        return _judge(ranks, stages, timeout_s)
    finally:
        for process, _ in ranks:
            process.kill()
            process.join(_END_S)


def _judge(ranks: Sequence[tuple[BaseProcess, Connection]], stages: Sequence[Stage], timeout_s: float) -> Verdict:
    speeds: dict[str, float] = {}
    for name, limit_s in (("meet", BEGIN_S), *((stage.name, timeout_s) for stage in stages)):
        until = time.monotonic() + limit_s
        missing = dict(enumerate(ranks))
        while missing:
            ready = wait([pipe for _, pipe in missing.values()], max(until - time.monotonic(), 0))
            if not ready:
                late = " and ".join(f"rank {rank}" for rank in missing)
                return Verdict(f"{name}: {late} did not answer within {limit_s:g} s", speeds)
            for rank, (process, pipe) in list(missing.items()):
                if pipe in ready:
                    del missing[rank]
                    cause = _take(pipe, process, rank, name, speeds)
                    if cause:
                        return Verdict(f"{name}: {cause}", speeds)
    return Verdict("", speeds)


def _take(pipe: Connection, process: BaseProcess, rank: int, name: str, speeds: dict[str, float]) -> str:
    """One answer of a rank; returns what is wrong with it."""
    try:
        cause, gib_s = pipe.recv()
    except (EOFError, OSError):
        process.join(_END_S)
        return death_cause(process.exitcode or 0, f"rank {rank}")
    if gib_s:
        speeds[name] = round(min(gib_s, speeds.get(name, gib_s)), 3)
    return f"rank {rank}: {cause}" if cause else ""


def _rank(rank: int, address: str, device: str, timeout_s: float, stages: Sequence[Stage], answers: Connection) -> None:
    """One rank: an answer for the meeting, then one for each stage, until one goes wrong."""
    torch.set_num_threads(1)
    try:
        # The parent's clock ends a stage; the library's own limit must not come first with a vaguer word.
        exchange = meet(Share(rank, RANKS), address, device, timeout_s * 2)
        answers.send(("", 0.0))
        for stage in stages:
            began = time.monotonic()
            passed = stage.act(exchange, device)
            answers.send(("", passed / max(time.monotonic() - began, 1e-6) / 2**30))
    except (WrongBytes, RuntimeError, OSError) as error:
        answers.send((" ".join(str(error).split())[:500], 0.0))
