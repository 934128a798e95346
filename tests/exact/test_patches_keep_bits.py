"""The kind a patch claims is true: for every prefix of the series the engine gives the same tokens and the same final states."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.channel.client import EngineClient
from lockstep.core.types import EngineRequest, Sampling
from recipe import patch_series, patch_work, patchset
from recipe.adapters import git

ROOT = Path(__file__).parents[2]
SAME_BITS = ("bits", "drafts", "structural", "diagnostic")
GREEDY, SAMPLED = Sampling(temperature=0.0), Sampling(temperature=0.9, top_k=50, top_p=0.95, min_p=0.01, seed=11)
# As the launcher of two ranks on one host would set it, so that patches for such a host are at work.
HOST = {"LOCAL_WORLD_SIZE": "2"}

Answers = list[tuple[tuple[int, ...], str | None]]
SERIES = patch_series.read(ROOT / patch_series.FOLDER)


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Engines with no patch, the first patch, the first two, and so on."""
    place = tmp_path_factory.mktemp("prefixes")
    folders = [place / "0000"]
    with patchset.scratch_repository(patch_work.pinned(ROOT, SERIES)) as scratch:
        git.ask(scratch, "checkout-index", "--all", f"--prefix={folders[0]}/")
        for patch, _, _ in patchset.apply_each(scratch, SERIES):
            folders.append(place / patch.story.name)
            git.ask(scratch, "checkout-index", "--all", f"--prefix={folders[-1]}/")
    return folders


def answers(engine: Path) -> Answers:
    command = [sys.executable, "-m", "lockstep", "engine", "--model", str(ROOT / "embedded"), "--context", "1024", "--state-hashes"]

    async def ask(client: EngineClient, length: int, sampling: Sampling) -> tuple[tuple[int, ...], str | None]:
        prompt = tuple((7 * at + 3 * length) % 2000 for at in range(length))
        tokens: list[int] = []
        state = None
        async for event in client.submit(EngineRequest(f"{length}-{sampling.temperature}", prompt, sampling, 16)):
            tokens += event.token_ids
            state = event.state_hash
        return tuple(tokens), state

    async def run() -> Answers:
        client = EngineClient(command)
        await client.start()
        await client.wait_ready()
        try:
            return list(await asyncio.gather(*(ask(client, length, sampling) for length in (1, 65) for sampling in (GREEDY, SAMPLED))))
        finally:
            await client.shutdown(0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(engine))
        for name, value in HOST.items():
            patch.setenv(name, value)
        return asyncio.run(run())


def test_every_prefix_of_the_series_gives_the_bits_its_kinds_promise(prefixes: list[Path]):
    before = answers(prefixes[0])
    assert all(len(tokens) == 16 and state for tokens, state in before)
    for patch, folder in zip(SERIES.patches, prefixes[1:], strict=True):
        after = answers(folder)
        if patch.story.kind in SAME_BITS:
            assert after == before, f"{patch.story.name} claims {patch.story.kind} and changes tokens or states"
        before = after


def placed(engine: Path, *cases: tuple[int, dict[str, str]]) -> list[tuple[list[int], int]]:
    """CPUs and compute threads of a process placed as each rank with these variables, one after the other."""
    program = (
        "import json, os, sys, torch\n"
        "from lockstep.run.placement import place_rank\n"
        "allowed, variables, seen = os.sched_getaffinity(0), dict(os.environ), []\n"
        "for rank, more in json.loads(sys.argv[1]):\n"
        "    os.environ.clear()\n"
        "    os.environ.update(variables | more)\n"
        "    os.sched_setaffinity(0, allowed)\n"
        "    place_rank(rank)\n"
        "    seen.append([sorted(os.sched_getaffinity(0)), torch.get_num_threads()])\n"
        "print(json.dumps(seen))\n"
    )
    argv = [sys.executable, "-c", program, json.dumps(cases)]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(engine)}, capture_output=True, text=True, check=True)
    return [(cpus, threads) for cpus, threads in json.loads(done.stdout)]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs to share")
def test_the_ranks_of_one_host_share_its_cpus_and_a_lone_engine_keeps_all(prefixes: list[Path]):
    everything = (sorted(os.sched_getaffinity(0)), 1)
    first, second, alone, off = placed(prefixes[1], (0, HOST), (1, HOST), (0, {}), (1, HOST | {"LOCKSTEP_PLACEMENT": "off"}))
    assert (first[0] + second[0], first[1], second[1]) == (everything[0], 1, 1)
    assert first[0]
    assert second[0]
    assert (alone, off) == (everything, everything)
    assert placed(prefixes[0], (1, HOST)) == [everything]
