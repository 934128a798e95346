"""The kind a patch claims is true: for every prefix of the series the engine gives the same tokens and the same final states."""

from __future__ import annotations

import asyncio
import io
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from fixtures.fronts import end_front, start_embedded
from lockstep.channel.client import EngineClient
from lockstep.core.types import EngineRequest, Sampling
from patchwork import git, listing, patchset, worktree
from recipe.ui import Ui
from verify import cli as quality
from verify import gates
from verify.client import OFF, ask, parse_url, probe

ROOT = Path(__file__).parents[2]
SAME_BITS = ("bits", "drafts", "structural", "diagnostic")
GREEDY, SAMPLED = Sampling(temperature=0.0), Sampling(temperature=0.9, top_k=50, top_p=0.95, min_p=0.01, seed=11)
GATED = "tool_calls"
Answers = list[tuple[tuple[int, ...], str | None]]
SERIES = listing.read(ROOT / listing.FOLDER)


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Engines with no patch, the first patch, the first two, and so on."""
    place = tmp_path_factory.mktemp("prefixes")
    folders = [place / "0000"]
    with patchset.scratch_repository(worktree.pinned(ROOT, SERIES)) as scratch:
        git.ask(scratch, "checkout-index", "--all", f"--prefix={folders[0]}/")
        for patch, _, _ in patchset.apply_each(scratch, SERIES):
            folders.append(place / patch.story.name)
            git.ask(scratch, "checkout-index", "--all", f"--prefix={folders[-1]}/")
    return folders


def cpus_of(pid: int) -> dict[int, set[int]]:
    """CPUs that a process and its children may use, by process number."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {number: os.sched_getaffinity(number) for number in (pid, *map(int, children))}


def serve(engine: Path, *flags: str, **variables: str) -> tuple[Answers, dict[int, set[int]]]:
    """Answers of this engine to the same four requests at once, and where its processes were placed."""
    command = [sys.executable, "-m", "lockstep", "engine", "--model", str(ROOT / "embedded"), "--context", "1024", "--state-hashes", *flags]

    async def ask(client: EngineClient, length: int, sampling: Sampling) -> tuple[tuple[int, ...], str | None]:
        prompt = tuple((7 * at + 3 * length) % 2000 for at in range(length))
        tokens: list[int] = []
        state = None
        async for event in client.submit(EngineRequest(f"{length}-{sampling.temperature}", prompt, sampling, 16)):
            tokens += event.token_ids
            state = event.state_hash
        return tuple(tokens), state

    async def run() -> tuple[Answers, dict[int, set[int]]]:
        client = EngineClient(command)
        await client.start()
        await client.wait_ready()
        try:
            asked = [ask(client, length, sampling) for length in (1, 65) for sampling in (GREEDY, SAMPLED)]
            return list(await asyncio.gather(*asked)), cpus_of(client.pid or 0)
        finally:
            await client.shutdown(0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(engine))
        for name, value in variables.items():
            patch.setenv(name, value)
        return asyncio.run(run())


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_every_prefix_of_the_series_gives_the_bits_its_kinds_promise(prefixes: list[Path], ranks: str):
    before, _ = serve(prefixes[0], "--ranks", ranks)
    assert all(len(tokens) == 16 and state for tokens, state in before)
    for patch, folder in zip(SERIES.patches, prefixes[1:], strict=True):
        after, _ = serve(folder, "--ranks", ranks)
        if patch.story.kind in SAME_BITS:
            assert after == before, f"{patch.story.name} claims {patch.story.kind} and changes tokens or states"
        before = after


@pytest.fixture(scope="module")
def gated(prefixes: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[str]]:
    """Hashes of the gate's own replies, drafted, by a server of so many patches that has passed the gate."""

    @cache
    def hashes(length: int) -> list[str]:
        flags = ("--context", "2048", "--ranks", "2", "--drafter", "mtp")
        front = start_embedded(tmp_path_factory.mktemp("gated"), *flags, engine=prefixes[length])
        try:
            front.wait_for("/health/ready", 200, limit_s=90)
            out = io.StringIO()
            assert quality.run(["--only", GATED], Ui({}, out=out, err=out), front.url, name="gate") == 0, out.getvalue()
            server = probe(parse_url(front.url, ""))
            return [ask(server, one.request, OFF).token_sha for one in gates.cases(GATED)]
        finally:
            end_front(front)

    return hashes


@pytest.mark.parametrize("length", range(1, len(SERIES.patches) + 1))
def test_every_prefix_of_the_series_passes_the_gate_with_the_hashes_its_kinds_promise(gated: Callable[[int], list[str]], length: int):
    story, before, after = SERIES.patches[length - 1].story, gated(length - 1), gated(length)
    assert len(before) == 6
    assert all(before)
    assert all(after)
    if story.kind in SAME_BITS:
        assert after == before, f"{story.name} claims {story.kind} and changes replies of the gate"


@pytest.mark.parametrize("length", range(1, len(SERIES.patches) + 1))
def test_every_prefix_of_the_series_drafts_what_it_would_say_serially(prefixes: list[Path], length: int):
    """Drafts that are often wrong with every prefix and one of the others in turn; with the whole series all."""
    kinds = ("mtp", "dflash2", "random")
    drafters = kinds if length == len(SERIES.patches) else kinds[length % 3 : length % 3 + 1]
    cells = f"two and cut and (oracle or {' or '.join(drafters)})"
    matrix = str(ROOT / "tests/exact/test_drafting_matrix.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", matrix, "-o", "pythonpath=scripts tests .", "-q", "-p", "no:randomly", "-k", cells],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(prefixes[length]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{1 + len(drafters)} passed" in done.stdout, f"{done.stdout[-2000:]}{done.stderr[-500:]}"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs to share")
def test_the_ranks_of_one_host_share_its_cpus_and_a_lone_engine_keeps_all(prefixes: list[Path]):
    allowed = os.sched_getaffinity(0)
    patched = prefixes[1]
    first, second = serve(patched, "--ranks", "2")[1].values()
    assert first
    assert second
    assert not first & second
    assert first | second == allowed
    assert list(serve(patched)[1].values()) == [allowed]
    assert list(serve(patched, "--ranks", "2", LOCKSTEP_PLACEMENT="off")[1].values()) == [allowed, allowed]
