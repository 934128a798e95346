"""Engine processes that keep prompt states and send them to disk: one and two ranks, broken files, a full disk, a kill and a restart."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.engines import GREEDY, SAMPLED, command
from lockstep.channel.client import EngineClient
from lockstep.core.errors import EngineDied
from lockstep.core.types import EngineRequest, Usage

Bits = tuple[tuple[int, ...], str | None]
LENGTHS = (65, 200, 300)
# Room for three states on a rank, so that the prompts' six send the first ones to disk.
TIGHT_GIB = {1: "0.0006", 2: "0.0004"}


def request(name: str, length: int) -> EngineRequest:
    prompt = tuple((7 * at + 3 * length) % 2000 for at in range(length))
    return EngineRequest(name, prompt, GREEDY if length % 2 else SAMPLED, 9)


async def ask(client: EngineClient, wanted: EngineRequest) -> tuple[Bits, Usage]:
    tokens: list[int] = []
    async for event in client.submit(wanted):
        tokens += event.token_ids
        if event.usage:
            return (tuple(tokens), event.state_hash), event.usage
    raise AssertionError("a request without a last event")


def serve(scenario: Callable[[EngineClient], Awaitable[None]], *flags: str, file_kib: int | None = None) -> None:
    async def run() -> None:
        line = command(*flags)
        client = EngineClient(line if file_kib is None else ["bash", "-c", f'ulimit -f {file_kib}; exec "$@"', "bash", *line])
        await client.start()
        await client.wait_ready()
        try:
            await scenario(client)
        finally:
            await client.shutdown(0.0)

    asyncio.run(run())


def cold(ranks: int) -> dict[int, Bits]:
    """Answers of an engine that keeps nothing."""
    found: dict[int, Bits] = {}

    async def scenario(client: EngineClient) -> None:
        for length in LENGTHS:
            found[length], usage = await ask(client, request(f"c{length}", length))
            assert usage.cached_tokens == 0
        again, usage = await ask(client, request("again", LENGTHS[0]))
        assert (again, usage.cached_tokens) == (found[LENGTHS[0]], 0)

    serve(scenario, "--kept-gib", "0", "--ranks", str(ranks))
    return found


@pytest.fixture(scope="module", params=[1, 2])
def ranks(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def answers(ranks: int) -> dict[int, Bits]:
    return cold(ranks)


async def fill(client: EngineClient, answers: dict[int, Bits], name: str) -> None:
    """Ask for every length, which leaves states on disk, and wait until they are written."""
    for length in LENGTHS:
        bits, _ = await ask(client, request(f"{name}{length}", length))
        assert bits == answers[length]
    await asyncio.sleep(1.5)


def files(folder: Path, rank: int) -> list[Path]:
    return sorted(folder.glob(f"rank{rank}-*.kept"))


def flags(ranks: int, folder: Path) -> tuple[str, ...]:
    return ("--ranks", str(ranks), "--drafter", "mtp", "--spill-dir", str(folder), "--kept-gib", TIGHT_GIB[ranks])


def test_states_come_back_from_disk_with_the_same_replies(ranks: int, answers: dict[int, Bits], tmp_path: Path):
    async def scenario(client: EngineClient) -> None:
        await fill(client, answers, "a")
        assert files(tmp_path, ranks - 1)
        hits = 0
        for length in LENGTHS:
            bits, usage = await ask(client, request(f"b{length}", length))
            assert bits == answers[length]
            hits += usage.cached_tokens
        assert hits >= LENGTHS[0]
        await asyncio.sleep(1.2)
        assert client.snapshot is not None
        assert client.snapshot.kept_spilled_total > 0
        assert client.snapshot.kept_lost_total == 0

    serve(scenario, *flags(ranks, tmp_path))
    assert not list(tmp_path.glob("*.kept")), "an engine that ends leaves nobody's prompts behind"


def test_a_broken_file_of_any_rank_is_named_and_its_prompt_computed_again(
    ranks: int, answers: dict[int, Bits], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    async def scenario(client: EngineClient) -> None:
        await fill(client, answers, "a")
        for path in files(tmp_path, ranks - 1):
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 4
            path.write_bytes(content)
        for length in LENGTHS:
            bits, _ = await ask(client, request(f"b{length}", length))
            assert bits == answers[length]
        await asyncio.sleep(1.2)
        assert client.snapshot is not None
        assert client.snapshot.kept_lost_total > 0

    serve(scenario, *flags(ranks, tmp_path))
    assert f"rank{ranks - 1}-" in (said := capfd.readouterr().err)
    assert "is not what was written (SHA-256 differs); its prompt is computed again" in said


def test_a_disk_that_is_full_is_named_and_nothing_wrong_is_served(
    ranks: int, answers: dict[int, Bits], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    async def scenario(client: EngineClient) -> None:
        await fill(client, answers, "a")
        assert not files(tmp_path, 0)
        await fill(client, answers, "b")

    serve(scenario, *flags(ranks, tmp_path), file_kib=16)
    assert "was not written (File too large); its prompt is computed again" in capfd.readouterr().err


def test_after_a_kill_the_next_engine_clears_the_folder_and_serves_the_same_bits(answers: dict[int, Bits], ranks: int, tmp_path: Path):
    async def killed(client: EngineClient) -> None:
        await fill(client, answers, "a")
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDied):
            await ask(client, request("late", 65))

    async def restarted(client: EngineClient) -> None:
        assert not files(tmp_path, 0)
        await fill(client, answers, "a")

    serve(killed, *flags(ranks, tmp_path))
    assert files(tmp_path, 0)
    serve(restarted, *flags(ranks, tmp_path))


def test_requests_in_company_share_prefixes_on_all_ranks(ranks: int, answers: dict[int, Bits]):
    async def scenario(client: EngineClient) -> None:
        wanted = [replace(request(f"{copy}-{length}", length), draft=copy < 2) for copy in range(3) for length in LENGTHS]
        found = await asyncio.gather(*(ask(client, one) for one in wanted))
        assert [bits for bits, _ in found] == [answers[len(one.prompt_ids)] for one in wanted]
        # A copy that comes when its twin is within a tile of the end does not wait for it: it begins at the twin's last whole tile.
        cached = {
            length: max(usage.cached_tokens for one, (_, usage) in zip(wanted, found, strict=True) if len(one.prompt_ids) == length)
            for length in LENGTHS
        }
        assert all(cached[length] >= (length - 1) // 64 * 64 for length in LENGTHS), cached

    serve(scenario, "--ranks", str(ranks), "--drafter", "mtp", "--parallel", "4")
