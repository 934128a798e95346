"""Two rank processes on the embedded checkpoint: same request, same tokens, same state; an end or a hang of either is named, and soon."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from fixtures import engines
from fixtures.engines import GREEDY, MODEL, SAMPLED, Answer, ask, ended, gone_within, other_rank
from lockstep.channel.child import ChildChannel
from lockstep.channel.client import EngineClient
from lockstep.config.serving import ServingOptions
from lockstep.core.errors import EngineDied
from lockstep.core.messages import Failed, Snapshot
from lockstep.core.rank_messages import Begin
from lockstep.core.types import EngineRequest, Sampling

LENGTHS = (1, 64, 65, 200)
BASE = [*engines.BASE, "--ranks", "2"]
DRAFTERS = {
    "none": ["--drafter", "none"],
    "MTP by measured cost": ["--drafter", "mtp", "--draft-policy", "cost3"],
    "block": ["--drafter", str(MODEL / "drafter")],
}


def serve(scenario: Callable[[EngineClient], Awaitable[object]], *flags: str, stall_limit_s: float | None = None) -> object:
    return engines.serve(scenario, "--ranks", "2", *flags, stall_limit_s=stall_limit_s)


def request(name: str, length: int, sampling: Sampling, max_tokens: int = 16) -> EngineRequest:
    return EngineRequest(name, tuple((7 * at + 3 * length) % 90 for at in range(length)), sampling, max_tokens)


async def settled(client: EngineClient) -> Snapshot:
    """What an idle engine reports once rank 1 has told of the last step."""
    while True:
        now = client.snapshot
        if now and not now.running and len({ran.step for ran in now.ranks}) == 1:
            return now
        await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def alone() -> dict[tuple[int, Sampling], Answer]:
    """Every request by itself on two ranks, one after the other, never drafted."""

    async def scenario(client: EngineClient) -> dict[tuple[int, Sampling], Answer]:
        return {(n, s): await ask(client, request(f"{n}-{s.temperature}", n, s)) for n in LENGTHS for s in (GREEDY, SAMPLED)}

    answers = serve(scenario, "--parallel", "1", *DRAFTERS["none"])
    assert isinstance(answers, dict)
    assert all(len(tokens) == 16 and state for tokens, state in answers.values())
    return answers


@pytest.mark.parametrize("drafter", list(DRAFTERS))
def test_together_drafted_and_in_slices_equals_alone_and_serial(alone, drafter: str):
    async def scenario(client: EngineClient) -> None:
        names = [request(f"{n}-{sampling.temperature}", n, sampling) for n in LENGTHS for sampling in (GREEDY, SAMPLED)]
        answers = await asyncio.gather(*(ask(client, wanted) for wanted in names))
        assert answers == [alone[len(wanted.prompt_ids), wanted.sampling] for wanted in names]
        assert client.snapshot is not None
        assert drafter != "block" or client.snapshot.drafted_tokens_total > 0
        assert client.facts is not None
        assert len(client.facts.rank_settings) == 2
        assert len(set(client.facts.rank_settings)) == 1
        one, two = (await asyncio.wait_for(settled(client), 10)).ranks
        assert (one.rank, two.rank) == (0, 1)
        assert one.step == two.step > 16
        assert one.chosen == two.chosen

    serve(scenario, "--parallel", "4", "--prompt-slice", "64", *DRAFTERS[drafter])


@pytest.mark.parametrize("busy", [True, False], ids=["in a step", "idle"])
def test_a_killed_rank_ends_the_engine_is_named_and_leaves_a_log_of_its_own(busy: bool, tmp_path: Path):
    async def scenario(client: EngineClient) -> float:
        stream = client.submit(request("doomed", 5, GREEDY, max_tokens=900))
        if busy:
            await anext(stream)
        killed_s = time.monotonic()
        os.kill(other_rank(client), signal.SIGKILL)
        await asyncio.wait_for(ended(client), 10)
        if busy:
            with pytest.raises(EngineDied, match=r"^rank 1 ended by signal 9 \(SIGKILL\)$"):
                async for _ in stream:
                    pass
        assert client.cause == "rank 1 ended by signal 9 (SIGKILL)"
        return time.monotonic() - killed_s

    took_s = serve(scenario, "--log-dir", str(tmp_path))
    assert isinstance(took_s, float)
    assert took_s < 10
    assert "begins: rank 1 of 2" in (tmp_path / "rank-1.log").read_text()


def strike_rank_0(strike: signal.Signals, told: str, stall_limit_s: float | None = None) -> None:
    """Send `strike` to rank 0 in the middle of a reply: the client is `told` so, and the other rank goes too."""

    async def scenario(client: EngineClient) -> int:
        stream = client.submit(request("doomed", 5, GREEDY, max_tokens=900))
        await anext(stream)
        other = other_rank(client)
        assert client.pid is not None
        os.kill(client.pid, strike)
        with pytest.raises(EngineDied, match=told):
            async for _ in stream:
                pass
        return other

    other = serve(scenario, stall_limit_s=stall_limit_s)
    assert isinstance(other, int)
    assert gone_within(other, 10)


def test_a_killed_rank_0_takes_the_other_with_it():
    strike_rank_0(signal.SIGKILL, r"engine process ended by signal 9 \(SIGKILL\)")


def test_a_rank_that_hangs_trips_the_watchdog():
    async def scenario(client: EngineClient) -> int:
        stream = client.submit(request("doomed", 5, GREEDY, max_tokens=900))
        await anext(stream)
        other = other_rank(client)
        os.kill(other, signal.SIGSTOP)
        with pytest.raises(EngineDied, match=r"^step \d+ did not end within 2 s \(--step-timeout\): a rank hangs or is too slow$"):
            async for _ in stream:
                pass
        return other

    other = serve(scenario, "--step-timeout", "2")
    assert isinstance(other, int)
    assert gone_within(other, 10)


def test_a_rank_0_that_hangs_is_ended_by_the_front():
    strike_rank_0(signal.SIGSTOP, r"engine process was not heard for 2\.5 s while it had work; it was ended", stall_limit_s=2.5)


def test_a_shutdown_ends_both_ranks_with_status_0():
    async def scenario(client: EngineClient) -> int:
        other = other_rank(client)
        await client.shutdown(5.0)
        assert client.cause == "engine process ended with exit status 0"
        return other

    other = serve(scenario)
    assert isinstance(other, int)
    assert gone_within(other, 10)


def test_a_rank_with_other_settings_refuses_and_names_them():
    ours, theirs = socket.socketpair()
    with theirs:
        flags = ["--channel-fd", str(theirs.fileno()), "--rank", "1"]
        command = [sys.executable, "-m", "lockstep", "engine", *BASE, "--parallel", "2", *flags]
        rank = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    channel = ChildChannel(ours)
    channel.send(Begin("tcp://127.0.0.1:1", {"parallel": "3"}))
    said = []
    while not channel.closed:
        said += channel.pending(0.1)
    assert rank.wait(20) == 6
    (last,) = said
    assert isinstance(last, Failed)
    assert "rank 1 has other settings than rank 0 (" in last.cause
    assert "parallel: 2 here, 3 on rank 0" in last.cause


def test_a_checkpoint_that_cannot_be_loaded_is_named_once(tmp_path: Path):
    async def run() -> str:
        client = EngineClient([sys.executable, "-m", "lockstep", "engine", "--model", str(tmp_path), "--ranks", "2"])
        await client.start()
        with pytest.raises(EngineDied) as caught:
            await client.wait_ready()
        return str(caught.value)

    assert "config.json" in asyncio.run(run())


def test_the_command_line_knows_ranks_and_the_timeout():
    options = ServingOptions.from_argv(["--model", "m", "--ranks", "2", "--step-timeout", "9"])
    assert (options.ranks, options.step_timeout) == (2, 9)
    assert ServingOptions.from_argv(options.to_argv()) == options
