"""A short soak: random clients of every kind on a small pool; the long one is `bench/soak.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fixtures.fronts import Front, serving, start_embedded
from fixtures.soaking import CHAT, FLAGS, SLOTS, Soak, asked_again, footprint, idle, lost_slots

SECONDS, CLIENTS, AGAIN = 10.0, 20, 5
KINDS = ("whole 200", "stream 200", "left stream 200", "cancelled", "too long 400", "tool 200", "echo 200")
# A server that has served a while may still fill its caches; one that leaks a request's memory takes more.
GROWTH_MIB = 64


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with serving(start_embedded(tmp_path_factory.mktemp("soak"), *FLAGS), 50) as started:
        yield started


def test_random_clients_lose_no_slot_no_page_no_bit_and_leave_nothing(front: Front) -> None:
    # Together they need twice the pool. The first request also starts the thread that steps run in.
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 230, "ignore_eos": True}
    with ThreadPoolExecutor(SLOTS) as pool:
        replies = list(pool.map(lambda _: front.http.post(CHAT, json=body).json(), range(SLOTS)))
    assert len({reply["lockstep"]["state_hash"] for reply in replies}) == 1
    assert idle(front.http)["pauses_total"] > 0
    before = footprint(front.engine_pid)
    soak = Soak(front.url, seed=1)
    # A slow machine may serve too few of them to show every kind.
    while soak.seed < 5 and not all(soak.outcomes[kind] for kind in KINDS):
        asyncio.run(soak.run(CLIENTS, SECONDS))
        soak.seed += 1
    told = idle(front.http)
    assert soak.wrong == []
    assert all(soak.outcomes[kind] for kind in KINDS), soak.outcomes
    assert told["drafted_total"] > 0
    assert lost_slots(front.http, SLOTS) == 0
    idle(front.http)
    asked, different, _ = asked_again(front.http, soak.finished, AGAIN, seed=1)
    assert (asked, different) == (AGAIN, [])
    told = idle(front.http)
    assert told["pool_free_tokens"] == told["pool_tokens"]
    after = footprint(front.engine_pid)
    assert after.mib - before.mib < GROWTH_MIB
    assert (after.files, after.threads) == (before.files, before.threads)
