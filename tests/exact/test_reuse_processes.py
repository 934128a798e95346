"""Engine processes that keep prompt states and send them to disk: one and two ranks, broken files, a full disk, a kill and a restart.

On two ranks also the matrix of lengths: without keeping, cold, warm, from disk, in company and by the next engine. CI leaves out what takes
minutes there, two of the three long prompts and the long one from shorter ones; LOCKSTEP_FULL_MATRIX=1 runs them too.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fixtures.engines import GREEDY, SAMPLED, command
from fixtures.waiting import until
from lockstep.channel.client import EngineClient
from lockstep.core.errors import EngineDied
from lockstep.core.grid import PAGE_TOKENS
from lockstep.core.types import EngineRequest, Usage

Bits = tuple[tuple[int, ...], str | None]
LENGTHS = (65, 200, 300)
# Room for three states on a rank, so that the prompts' six send the first ones to disk.
TIGHT_GIB = {1: "0.0006", 2: "0.0004"}
FULL = os.environ.get("LOCKSTEP_FULL_MATRIX") == "1"
SHORT = (1, 63, 64, 65, 127, 128, 129, 161, 1000)
MATRIX = (*SHORT, 4095, 4096, 4097) if FULL else (*SHORT, 4097)
# By length, what a prompt finds of those before it: the last tile end that it shares with them.
SHARED = dict(zip(SHORT, (0, 0, 0, 64, 64, 64, 128, 128, 128), strict=True)) | ({4095: 960, 4096: 4032, 4097: 4096} if FULL else {})
# A disk of its own for whoever runs in it, as large as a state or two.
DISK = 'mount -t tmpfs -o size="$2" tmpfs "$1" && shift 2 && exec "$@"'


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


def serve(scenario: Callable[[EngineClient], Awaitable[None]], *flags: str, disk: tuple[str, ...] = ()) -> None:
    async def run() -> None:
        client = EngineClient([*disk, *command(*flags)])
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
        await until(lambda: client.snapshot is not None and client.snapshot.kept_spilled_total > 0)
        assert client.snapshot is not None
        assert client.snapshot.kept_lost_total == 0

    async def next_one(client: EngineClient) -> None:
        for length in reversed(LENGTHS):
            bits, usage = await ask(client, request(f"c{length}", length))
            assert (bits, usage.cached_tokens) == (answers[length], length)

    serve(scenario, *flags(ranks, tmp_path))
    kept = {rank: [path.name.partition("-")[2] for path in files(tmp_path, rank)] for rank in range(ranks)}
    assert kept[0]
    assert kept[0] == kept[ranks - 1]
    serve(next_one, *flags(ranks, tmp_path))

    async def other_bits(client: EngineClient) -> None:
        _, usage = await ask(client, request("d", LENGTHS[0]))
        assert usage.cached_tokens == 0, "coded rows have bits of their own"

    if ranks == 1:
        serve(other_bits, *flags(ranks, tmp_path), "--kv", "fp8")


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
        await until(lambda: client.snapshot is not None and client.snapshot.kept_lost_total > 0)

    serve(scenario, *flags(ranks, tmp_path))
    assert f"rank{ranks - 1}-" in (said := capfd.readouterr().err)
    assert "is not what was written (SHA-256 differs); its prompt is computed again" in said


def test_a_disk_that_is_full_is_named_and_nothing_wrong_is_served(
    ranks: int, answers: dict[int, Bits], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    disk = (
        "unshare",
        *(() if os.getuid() == 0 else ("--user", "--map-root-user")),
        "--mount",
        "sh",
        "-c",
        DISK,
        "sh",
        str(tmp_path),
        "64k",
    )
    if shutil.which("unshare") is None or subprocess.run([*disk, "true"], check=False).returncode:
        pytest.skip("this user may not mount a disk of its own")

    async def scenario(client: EngineClient) -> None:
        await fill(client, answers, "a")
        assert files(Path(f"/proc/{client.pid}/root{tmp_path}"), 0) == []
        await fill(client, answers, "b")

    serve(scenario, *flags(ranks, tmp_path), disk=disk)
    assert "was not written (No space left on device); its prompt is computed again" in capfd.readouterr().err


def test_after_a_kill_the_next_engine_serves_the_same_bits_from_what_was_on_disk(
    answers: dict[int, Bits], ranks: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    async def killed(client: EngineClient) -> None:
        await fill(client, answers, "a")
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDied):
            await ask(client, request("late", 65))

    async def restarted(client: EngineClient) -> None:
        bits, usage = await ask(client, request("first", LENGTHS[0]))
        assert (bits, usage.cached_tokens) == (answers[LENGTHS[0]], 0)
        bits, usage = await ask(client, request("second", LENGTHS[1]))
        assert bits == answers[LENGTHS[1]]
        assert usage.cached_tokens >= 192, "the others are whole"
        await fill(client, answers, "a")

    serve(killed, *flags(ranks, tmp_path))
    names = [path.name for path in files(tmp_path, ranks - 1)]
    assert names[:2] == [f"rank{ranks - 1}-1.kept", f"rank{ranks - 1}-2.kept"], "both states of the first prompt"
    for name in names[:2]:
        content = bytearray((tmp_path / name).read_bytes())
        content[-9] ^= 1
        (tmp_path / name).write_bytes(content)
    serve(restarted, *flags(ranks, tmp_path))
    assert "is not what was written (SHA-256 differs)" in capfd.readouterr().err


def common(name: str, length: int, namespace: str = "") -> EngineRequest:
    """A prompt that begins as those of all other lengths do."""
    prompt = tuple((37 * at + at * at // 11) % 2000 for at in range(length))
    return EngineRequest(name, prompt, GREEDY if length % 2 else SAMPLED, 5, namespace=namespace)


@pytest.mark.timeout(1800 if FULL else 300)
def test_on_two_ranks_all_lengths_are_the_same_however_they_begin(tmp_path: Path):
    wanted: dict[int, Bits] = {}
    cached: dict[str, int] = {}

    async def without(client: EngineClient) -> None:
        for length in MATRIX:
            wanted[length], _ = await ask(client, common(f"{length}", length))

    async def check(client: EngineClient, name: str, namespaces: Callable[[int], str], lengths: tuple[int, ...] = MATRIX) -> None:
        """Prompts of `lengths`, shortest first, one after the other."""
        cached[name] = 0
        for length in lengths:
            bits, usage = await ask(client, common(f"{name} {length}", length, namespaces(length)))
            assert bits == wanted[length], f"{length} {name}"
            cached[name] += usage.cached_tokens

    async def kept(client: EngineClient) -> None:
        await check(client, "cold", lambda length: f"own {length}")
        await check(client, "from shorter ones", lambda _: "shared", tuple(SHARED))
        await check(client, "at once or from disk", lambda length: f"own {length}")
        together = [common(f"together {length}", length, "company") for length in SHARED]
        found = await asyncio.gather(*(ask(client, one) for one in together))
        assert [bits for bits, _ in found] == [wanted[length] for length in SHARED]

    async def after(client: EngineClient) -> None:
        await check(client, "after a restart", lambda length: f"own {length}")
        assert client.snapshot is not None
        assert client.snapshot.kept_returned_total >= len(MATRIX) // 2

    here = ("--context", "4608", "--pool-tokens", "9216", "--kept-gib", "0.002", "--spill-dir", str(tmp_path))
    base = ("--ranks", "2", "--drafter", "mtp", *here)
    serve(without, *base, "--kept-gib", "0")
    serve(kept, *base)
    serve(after, *base)
    everything = sum(length for length in MATRIX if length >= PAGE_TOKENS)
    assert cached == {
        "cold": 0,
        "from shorter ones": sum(SHARED.values()),
        "at once or from disk": everything,
        "after a restart": everything,
    }


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
