"""Two ranks of the patched engine: what they share passes whole and in order, an end or a hang is named, nobody listens or burns time."""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fixtures import engines
from fixtures.compiled import compiled
from fixtures.engines import GREEDY, ended, gone_within, listening_addresses, other_rank
from fixtures.patched import Store, both, export
from fixtures.patched import modules as added
from fixtures.waiting import until
from lockstep.channel.client import EngineClient
from lockstep.config.share import Share
from lockstep.core.errors import EngineDied
from lockstep.core.types import EngineRequest
from lockstep.kernels.cuda import _bindings
from lockstep.run.exchange import in_rank_order


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine with the whole series."""
    return export(tmp_path_factory.mktemp("patched") / "engine")


@pytest.fixture
def modules(patched: Path) -> Iterator[dict[str, ModuleType]]:
    with added(patched, "shared", "ring", "local") as found:
        yield found


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def test_frames_of_every_length_come_whole_and_in_order_round_the_ring(modules: dict[str, ModuleType]):
    ring = modules["ring"].Ring()
    bodies = [bytes([at % 251]) * (at * 7919 % 70_000) for at in range(1, 200)]

    def work(rank: int) -> list[bytes]:
        if rank:
            frames = modules["ring"].Ring(ring.place).frames()
            return [next(frames) for _ in bodies]
        for body in bodies:
            while not ring.offer(frame(body)):
                threading.Event().wait(0.001)
        return bodies

    sent, came = both(work)
    assert sum(map(len, bodies)) > 5 * modules["ring"].CAPACITY
    assert came == sent


def test_a_full_ring_takes_nothing_more(modules: dict[str, ModuleType]):
    ring = modules["ring"].Ring()
    half = frame(bytes(modules["ring"].CAPACITY // 2 - 4))
    assert [ring.offer(half) for _ in range(3)] == [True, True, False]
    frames = modules["ring"].Ring(ring.place).frames()
    assert next(frames) == half[4:]
    assert next(frames) == half[4:]
    assert ring.offer(half)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_sums_and_columns_of_any_size_are_those_of_a_plain_gather(modules: dict[str, ModuleType], kind: torch.dtype):
    shapes = [(1, 1), (1, 256), (32, 256), (0, 8), (7, 33), (300, 4096), (3, 1), (64, 2304)]
    parts = [[torch.randn(shape, generator=torch.Generator().manual_seed(rank)).to(kind) for shape in shapes] for rank in range(2)]
    first = modules["local"].LocalRows(Share(0, 2), 20.0)

    def work(rank: int) -> tuple[list[Any], list[Any]]:
        rows = modules["local"].LocalRows(Share(1, 2), 20.0, first.place) if rank else first
        assert rows.trial() == ""
        exchange = modules["exchange"].LocalExchange(rows)
        return [exchange.add(part) for part in parts[rank] * 5], [exchange.join(part) for part in parts[rank]]

    for sums, joined in both(work):
        for found, pair in zip(sums, list(zip(*parts, strict=True)) * 5, strict=True):
            assert found.dtype is kind
            assert torch.equal(found, in_rank_order(pair))
        assert all(torch.equal(found, torch.cat(pair, -1)) for found, pair in zip(joined, zip(*parts, strict=True), strict=True))


def test_a_rank_that_takes_no_part_is_named(modules: dict[str, ModuleType]):
    rows = modules["local"].LocalRows(Share(0, 2), 0.2)
    with pytest.raises(RuntimeError, match=r"^rank 1 did not take part in an exchange within 0\.2 s"):
        rows.gather(torch.ones(1, 4))


@pytest.mark.parametrize("fault", ["opens", "numbers"])
def test_a_rank_that_cannot_share_sends_all_to_the_library_and_is_named(
    modules: dict[str, ModuleType], fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    class Broken(modules["local"].LocalRows):
        def __init__(self, share: Share, timeout_s: float, place: str = "") -> None:
            super().__init__(share, timeout_s, "/nowhere" if share.rank and fault == "opens" else place)

        def _pass(self, own: torch.Tensor) -> list[torch.Tensor]:
            every = super()._pass(own)
            return [one + 1 for one in every] if fault == "numbers" and self.share.rank else every

    monkeypatch.setattr(modules["exchange"], "LocalRows", Broken)
    store = Store()
    assert both(lambda rank: modules["exchange"]._local_rows(Share(rank, 2), store, 5.0)) == [None, None]
    reason = "rank 1: /nowhere of" if fault == "opens" else "rank 1 found other numbers than rank 0 had written"
    assert [record.getMessage().count(reason) for record in caplog.records] == [1, 1]


def test_where_stores_may_change_places_nothing_is_shared(modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(modules["shared"].NotShared, match=r"this is linux on aarch64; needed: linux on x86_64"):
        modules["shared"].SharedMemory(4096)


@pytest.mark.usefixtures("modules")
def test_a_handle_of_memory_is_told_with_all_its_bytes():
    region = object.__new__(importlib.import_module("lockstep.kernels.peer_sum").Region)
    told, driver = bytes(range(64)), _bindings("driver")

    def made(_pointer: int) -> tuple[int, Any]:
        handle = driver.CUipcMemHandle()
        ctypes.memmove(handle.getPtr(), told, len(told))
        return 0, handle

    region._driver, region._pointer = SimpleNamespace(cuIpcGetMemHandle=made), 0
    assert region.handle() == told


@pytest.mark.parametrize("card", ["sm_90", "sm_120"])
@pytest.mark.parametrize("kind", [2, 4])
def test_the_sum_from_card_to_card_compiles_for_every_card(patched: Path, card: str, kind: int):
    macros = {"KIND": kind, "BLOCKS": 64, "THREADS": 256, "LINE": 128, "PLACE": 16 << 10}
    found = compiled(patched / "lockstep" / "kernels" / "peer_sum" / "peer.cu", macros, card)
    assert set(found) == {"peer_sum"}
    assert found["peer_sum"].spilled_bytes == found["peer_sum"].stack_bytes == 0


def serve(patched: Path, scenario: Callable[[EngineClient], Awaitable[object]], *flags: str, stall_limit_s: float | None = None) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(patched))
        return engines.serve(scenario, "--ranks", "2", *flags, stall_limit_s=stall_limit_s)


def doomed(client: EngineClient) -> Any:
    return client.submit(EngineRequest("doomed", tuple(range(5)), GREEDY, 900))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def shares_memory(pid: int) -> bool:
    return "/memfd:shared" in Path(f"/proc/{pid}/maps").read_text()


def rest(pids: tuple[int, ...]) -> Callable[[], bool]:
    """Asks whether processes have done next to nothing since it was last asked: libraries are loaded beside serving."""
    seen: list[float] = []

    def rests() -> bool:
        seen.append(sum(cpu_s(pid) for pid in pids))
        return len(seen) > 1 and seen[-1] - seen[-2] < 0.05

    return rests


def test_an_idle_pair_listens_nowhere_and_burns_nothing_and_a_killed_rank_0_takes_the_other_along(patched: Path):
    async def scenario(client: EngineClient) -> int:
        assert client.pid is not None
        pids = (client.pid, other_rank(client))
        assert [listening_addresses(pid) for pid in pids] == [set(), set()]
        assert all(shares_memory(pid) for pid in pids)
        await until(rest(pids), 0.5)
        began = [cpu_s(pid) for pid in pids]
        await asyncio.sleep(3)
        assert [cpu_s(pid) - before < 0.15 for pid, before in zip(pids, began, strict=True)] == [True, True]
        stream = doomed(client)
        await anext(stream)
        os.kill(client.pid, signal.SIGKILL)
        with pytest.raises(EngineDied, match=r"engine process ended by signal 9 \(SIGKILL\)"):
            async for _ in stream:
                pass
        return pids[1]

    assert gone_within(int(str(serve(patched, scenario))), 10)


def strike(patched: Path, how: signal.Signals, rank: int, told: str, *flags: str, stall_limit_s: float | None = None) -> None:
    """Send `how` to a rank in the middle of a reply: the client is `told` so, and both ranks go."""

    async def scenario(client: EngineClient) -> int:
        stream = doomed(client)
        await anext(stream)
        other = other_rank(client)
        os.kill(other if rank else client.pid or 0, how)
        with pytest.raises(EngineDied, match=told):
            async for _ in stream:
                pass
        await asyncio.wait_for(ended(client), 10)
        return other

    assert gone_within(int(str(serve(patched, scenario, *flags, stall_limit_s=stall_limit_s))), 10)


def test_a_killed_rank_1_is_named(patched: Path):
    strike(patched, signal.SIGKILL, 1, r"^rank 1 ended by signal 9 \(SIGKILL\)$")


def test_a_rank_1_that_hangs_trips_the_watchdog(patched: Path):
    told = r"^step \d+ did not end within 2 s \(--step-timeout\): a rank hangs or is too slow$"
    strike(patched, signal.SIGSTOP, 1, told, "--step-timeout", "2")


def test_a_rank_0_that_hangs_is_ended_by_the_front(patched: Path):
    strike(patched, signal.SIGSTOP, 0, r"engine process was not heard for 2\.5 s while it had work", stall_limit_s=2.5)
