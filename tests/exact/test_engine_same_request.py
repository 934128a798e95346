"""The whole engine process on the embedded checkpoint: the same request gives the same tokens and the same final state in any company."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.engines import GREEDY, ROOT, SAMPLED, Answer, ask, command, serve
from fixtures.waiting import until
from lockstep.channel.client import EngineClient, EngineState
from lockstep.config.serving import LOOPS
from lockstep.core.errors import CONTEXT_EXCEEDED, EngineDied, EngineRejected
from lockstep.core.types import EngineRequest, FinishReason, Sampling

LENGTHS = (1, 63, 64, 65, 300)


def request(name: str, length: int, sampling: Sampling, max_tokens: int = 24) -> EngineRequest:
    return EngineRequest(name, tuple((7 * at + 3 * length) % 2000 for at in range(length)), sampling, max_tokens)


@pytest.fixture(scope="module")
def alone() -> dict[tuple[int, Sampling], Answer]:
    """Every request by itself, one after the other, on a server with one slot."""

    async def scenario(client: EngineClient) -> dict[tuple[int, Sampling], Answer]:
        return {(n, s): await ask(client, request(f"{n}-{s.temperature}", n, s)) for n in LENGTHS for s in (GREEDY, SAMPLED)}

    answers = serve(scenario, "--parallel", "1")
    assert isinstance(answers, dict)
    assert all(len(tokens) == 24 and state for tokens, state in answers.values())
    return answers


@pytest.mark.parametrize(("prompt_slice", "loop"), [(64, "plain"), (7, "overlapped"), (4096, "overlapped")])
def test_together_equals_alone_whatever_the_prompt_slices_in_either_loop(alone, prompt_slice: int, loop: str):
    async def scenario(client: EngineClient) -> None:
        for sampling in (GREEDY, SAMPLED):
            names = [request(f"{n}-{copy}", n, sampling) for copy in range(2) for n in LENGTHS]
            answers = await asyncio.gather(*(ask(client, wanted) for wanted in names))
            assert answers == [alone[len(wanted.prompt_ids), sampling] for wanted in names]

    serve(scenario, "--parallel", "4", "--prompt-slice", str(prompt_slice), "--loop", loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_staggered_arrivals_and_cancels_next_door_change_nothing(alone, loop: str):
    async def cancelled_after(client: EngineClient, name: str, rounds: int) -> None:
        stream = client.submit(request(name, 80, SAMPLED, max_tokens=200))
        for _ in range(rounds):
            await anext(stream)
        await stream.aclose()

    async def later(client: EngineClient, delay_s: float, wanted: EngineRequest) -> Answer:
        await asyncio.sleep(delay_s)
        return await ask(client, wanted)

    async def scenario(client: EngineClient) -> None:
        wanted = [request(f"s{n}", n, sampling) for n, sampling in zip(LENGTHS, (GREEDY, SAMPLED) * 3, strict=False)]
        asked = [later(client, 0.03 * at, one) for at, one in enumerate(wanted)]
        noise = [cancelled_after(client, f"c{at}", 3 + 4 * at) for at in range(3)]
        answers = (await asyncio.gather(*asked, *noise))[: len(wanted)]
        assert list(answers) == [alone[len(one.prompt_ids), one.sampling] for one in wanted]

    serve(scenario, "--parallel", "3", "--prompt-slice", "64", "--loop", loop)


@pytest.mark.parametrize("flags", [("mtp", "--loop", "overlapped"), (str(ROOT / "embedded" / "drafter"), "--draft-policy", "cost7:noisy")])
def test_an_engine_that_drafts_gives_the_same_replies_and_counts_its_drafts(alone, flags: tuple[str, ...]):
    async def scenario(client: EngineClient) -> None:
        for sampling in (GREEDY, SAMPLED):
            names = [replace(request(f"{n}-{copy}", n, sampling), draft=copy == 0) for copy in range(2) for n in LENGTHS]
            answers = await asyncio.gather(*(ask(client, wanted) for wanted in names))
            assert answers == [alone[len(wanted.prompt_ids), sampling] for wanted in names]
        await until(lambda: client.snapshot is not None and client.snapshot.accepted_tokens_total > 0)
        assert client.snapshot is not None
        assert client.snapshot.accepted_tokens_total < client.snapshot.drafted_tokens_total

    serve(scenario, "--parallel", "4", "--drafter", *flags)


def test_sixteen_requests_share_four_slots_and_all_finish():
    async def scenario(client: EngineClient) -> None:
        answers = await asyncio.gather(*(ask(client, request(f"q{n}", n + 1, GREEDY, max_tokens=5)) for n in range(16)))
        assert [len(tokens) for tokens, _ in answers] == [5] * 16

    serve(scenario)


def test_a_request_past_the_window_is_refused_and_the_next_one_served():
    async def scenario(client: EngineClient) -> None:
        with pytest.raises(EngineRejected, match="needs 1025 tokens; this server holds 1024") as caught:
            await ask(client, request("long", 1000, GREEDY, max_tokens=25))
        assert caught.value.code == CONTEXT_EXCEEDED
        assert len((await ask(client, request("next", 5, GREEDY)))[0]) == 24

    serve(scenario)


def test_shutdown_lets_a_reply_finish_and_refuses_more():
    async def scenario(client: EngineClient) -> None:
        stream = client.submit(request("last", 5, GREEDY, max_tokens=60))
        await anext(stream)
        stopping = asyncio.create_task(client.shutdown(30.0))
        await asyncio.sleep(0)
        with pytest.raises(EngineRejected, match="draining"):
            await ask(client, request("more", 5, GREEDY))
        assert [event.finish async for event in stream][-1] is FinishReason.LENGTH
        await stopping
        assert client.cause == "engine process ended with exit status 0"

    serve(scenario)


def test_a_killed_engine_ends_its_streams_with_the_cause():
    async def scenario(client: EngineClient) -> None:
        stream = client.submit(request("doomed", 5, GREEDY, max_tokens=900))
        await anext(stream)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDied, match="SIGKILL"):
            async for _ in stream:
                pass
        assert client.state is EngineState.DEAD

    serve(scenario)


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path: Path):
    async def run() -> str:
        client = EngineClient([sys.executable, "-m", "lockstep", "engine", "--model", str(tmp_path)])
        await client.start()
        with pytest.raises(EngineDied) as caught:
            await client.wait_ready()
        return str(caught.value)

    assert f"engine cannot load {tmp_path}" in asyncio.run(run())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--drafter", "mtp", "--draft-policy", "fnc7:0.3"], "a word of the drafter in use"),
        (["--drafter", str(ROOT / "nowhere")], "nowhere"),
    ],
)
def test_a_drafter_that_cannot_be_used_is_named(flags: list[str], words: str):
    async def run() -> str:
        client = EngineClient(command(*flags))
        await client.start()
        with pytest.raises(EngineDied) as caught:
            await client.wait_ready()
        return str(caught.value)

    assert words in asyncio.run(run())
