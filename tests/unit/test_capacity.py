"""How many tokens fit the memory: counted as the pools really are, refused with the largest window that fits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lockstep.cache import StateSlots, TokenPool
from lockstep.config.model import read_model_config
from lockstep.config.serving import ServingOptions
from lockstep.config.share import WHOLE, Share
from lockstep.run.capacity import RESERVE_BYTES, Needs, WindowError, available_bytes, free_bytes, needs, pool_pages

EMBEDDED = Path(__file__).parents[2] / "embedded"
TEXT = read_model_config(EMBEDDED).text
MIB = 1 << 20


def options(**fields: object) -> ServingOptions:
    return ServingOptions(EMBEDDED, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("kv", ["bf16", "fp8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_page_counts_what_it_takes(kv: str, dtype: torch.dtype):
    pool = TokenPool(TEXT, 62, "cpu", dtype, kv)
    told = needs(options(kv=kv), TEXT, dtype, WHOLE)
    assert told.page_bytes * 64 == sum(store.numel() * store.element_size() for store in (pool.latents, pool.pooled))


def test_slots_count_what_this_rank_holds_of_them():
    whole, half = (needs(options(parallel=3), TEXT, torch.float32, share).fixed_bytes for share in (WHOLE, Share(0, 2)))
    slots = StateSlots(TEXT, 3, "cpu", torch.float32)
    held = sum(part.numel() * part.element_size() for part in (slots.kda, slots.conv_tail, slots.index_tail))
    assert whole == RESERVE_BYTES["cpu"] + held
    assert RESERVE_BYTES["cpu"] + held // 2 <= half < whole


def test_drafters_count_too():
    none, mtp, block = (needs(options(drafter=word), TEXT, torch.float32, WHOLE) for word in ("none", "mtp", str(EMBEDDED / "drafter")))
    assert mtp.page_bytes * 2 == none.page_bytes * 3
    assert mtp.fixed_bytes > none.fixed_bytes
    assert block.fixed_bytes - none.fixed_bytes == sum(path.stat().st_size for path in (EMBEDDED / "drafter").glob("*.safetensors"))


NEEDED = Needs(page_bytes=MIB, fixed_bytes=10 * MIB)


def test_the_pool_is_as_large_as_asked_or_as_all_windows_or_as_fits():
    asked = options(context=640, parallel=4, pool_tokens=1280)
    windows = options(context=640, parallel=4)
    assert [pool_pages(asked, NEEDED, free * MIB) for free in (30, 1000)] == [20, 20]
    assert [pool_pages(windows, NEEDED, free * MIB) for free in (20, 35, 50, 1000)] == [10, 25, 40, 40]


@pytest.mark.parametrize(
    ("fields", "free", "words"),
    [
        ({"context": 640}, 19, r"--context 640 needs 0\.02 GiB beside the weights, 0\.02 GiB are free; the largest that fits is 576"),
        ({"context": 640, "pool_tokens": 1280}, 29, r"--pool-tokens 1280 needs .*; the largest that fits is 1216"),
        ({"context": 640}, 10, r"not even 64 tokens fit: lower --parallel or free memory"),
        ({"context": 640}, 0, r"not even 64 tokens fit"),
    ],
)
def test_what_does_not_fit_is_refused_with_what_does(fields: dict[str, int], free: int, words: str):
    with pytest.raises(WindowError, match=words) as caught:
        pool_pages(options(**fields), NEEDED, free * MIB)
    assert caught.value.code == "window_too_large"


def test_the_window_named_really_fits():
    with pytest.raises(WindowError) as caught:
        pool_pages(options(context=16384), NEEDED, 100 * MIB)
    named = int(str(caught.value).rsplit(" ", 1)[1])
    assert pool_pages(options(context=named, parallel=1), NEEDED, 100 * MIB) * 64 == named


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 4096 * 1024),
        ({"memory.max": "max", "memory.current": "5"}, 4096 * 1024),
        ({"memory.max": "1000000", "memory.current": "400000"}, 600000),
        ({"memory.max": "1000000", "memory.current": "1400000"}, 0),
        ({"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "5"}, 4096 * 1024),
        ({"memory/memory.limit_in_bytes": "1000000", "memory/memory.usage_in_bytes": "100000"}, 900000),
    ],
)
def test_memory_is_the_machines_or_the_control_groups(tmp_path: Path, files: dict[str, str], expected: int):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9000 kB\nMemFree: 100 kB\nMemAvailable: 4096 kB\n")
    for name, text in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    assert available_bytes(tmp_path) == expected


def test_ranks_of_one_machine_share_its_memory():
    assert 0 < free_bytes("cpu", 2) < available_bytes(Path("/")) * 3 // 4


def test_a_reserve_and_a_bound_of_the_pool_are_asked_for_in_gib():
    usual, asked = (needs(options(memory_reserve_gib=gib), TEXT, torch.float32, WHOLE).fixed_bytes for gib in (0, 6))
    assert asked - usual == (6 << 30) - RESERVE_BYTES["cpu"]
    bounded = options(context=640, parallel=4, kv_pool_gib=5 / 1024)
    assert [pool_pages(bounded, NEEDED, free * MIB) for free in (20, 1000)] == [10, 15]
