"""Frames, and the client against a scripted engine process: streams, cancels, deaths."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from lockstep.channel.client import EngineClient, EngineState, death_cause
from lockstep.channel.frames import HEADER_BYTES, FrameError, body_length, decode, encode, read, written
from lockstep.core.errors import EngineDied, EngineRejected
from lockstep.core.messages import Cancel, Ready, Rejected, Round, Shutdown, Submit
from lockstep.core.types import EngineRequest, FinishReason, Grammar, Picture, RoundEvent, Sampling, Usage

SCRIPTED = Path(__file__).parents[1] / "fixtures" / "scripted_engine.py"


def request(name: str = "r", max_tokens: int = 100) -> EngineRequest:
    return EngineRequest(name, (1, 2, 3), Sampling(seed=2**64 - 1), max_tokens, frozenset({5}))


def engine(tmp_path: Path, **script: object) -> EngineClient:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    return EngineClient([sys.executable, str(SCRIPTED), str(path)])


@pytest.fixture(autouse=True)
def _package_on_the_path(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "engine"))


@pytest.mark.parametrize(
    "message",
    [
        Submit(request()),
        Cancel("r"),
        Shutdown(2.5),
        Rejected("r", "queue_full", "später"),
        Ready(1, 2, 3, 4, "cpu", "0", "x"),
        Round((RoundEvent("r", (1, 2), FinishReason.STOP, Usage(3), "ab"), RoundEvent("s"))),
    ],
)
def test_every_message_survives_the_frame(message):
    frame = encode(message)
    assert body_length(frame[:4]) == len(frame) - 4
    assert decode(frame[4:]) == message


def test_pixels_and_grammars_travel_as_they_lie_and_arrive_with_their_request():
    pixels, compiled = bytes(range(256)) * 64, b"compiled"
    shown = tuple(Picture(at, 4, 1, 28, 28, "00", data) for at, data in enumerate((pixels, b"", pixels[:9])))
    for wanted in (replace(request(), pictures=shown, grammar=Grammar("d", compiled, 7)), replace(request(), pictures=shown), request()):
        sent = written(Submit(wanted))
        assert [part for part in sent if part is pixels] == [pixels] * bool(wanted.pictures), "no copy"
        wire = io.BytesIO(b"".join([*sent, *written(Cancel("s"))]))

        def next_body(wire: io.BytesIO = wire) -> bytes:
            return wire.read(body_length(wire.read(HEADER_BYTES)))

        assert read(next_body) == Submit(wanted)
        assert read(next_body) == Cancel("s")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x00" * 9,
        msgspec.msgpack.encode(("Nonsense", {})),
        msgspec.msgpack.encode(("Cancel", {"request_id": 5})),
        encode(Cancel("r"))[4:-1],
    ],
)
def test_bytes_that_are_no_message_are_refused(body: bytes):
    with pytest.raises(FrameError):
        decode(body)


def test_a_header_cannot_ask_for_endless_memory():
    with pytest.raises(FrameError, match="announces"):
        body_length(b"\xff\xff\xff\xff")


def test_a_request_streams_its_rounds_and_ends_once(tmp_path: Path):
    async def run() -> list[RoundEvent]:
        client = engine(tmp_path, rounds=[[10], [11, 12], [13]])
        await client.start()
        await client.wait_ready()
        events = [event async for event in client.submit(request())]
        await client.shutdown(1.0)
        return events

    events = asyncio.run(run())
    assert [event.token_ids for event in events] == [(10,), (11, 12), (13,)]
    assert [event.finish for event in events] == [None, None, FinishReason.STOP]


def test_leaving_a_stream_early_cancels_its_request(tmp_path: Path):
    async def run() -> int:
        client = engine(tmp_path, rounds=[[1]] * 10_000, delay_s=0.005)
        await client.start()
        await client.wait_ready()
        stream = client.submit(request(max_tokens=10_000))
        await anext(stream)
        await stream.aclose()
        for _ in range(200):
            await asyncio.sleep(0.01)
            if client.snapshot is not None and client.snapshot.running == 0:
                break
        await client.shutdown(0.1)
        return client.snapshot.running if client.snapshot else -1

    assert asyncio.run(run()) == 0


def test_a_refusal_reaches_its_own_request(tmp_path: Path):
    async def run() -> str:
        client = engine(tmp_path, rounds=[[1]], slots=0, max_queued=0)
        await client.start()
        await client.wait_ready()
        with pytest.raises(EngineRejected) as caught:
            await anext(client.submit(request()))
        await client.shutdown(0.1)
        return caught.value.code

    assert asyncio.run(run()) == "queue_full"


def test_a_killed_engine_is_known_within_a_second_with_its_cause(tmp_path: Path):
    async def run() -> tuple[float, str, EngineState]:
        client = engine(tmp_path, rounds=[[1]] * 1000, delay_s=0.01)
        await client.start()
        await client.wait_ready()
        stream = client.submit(request(max_tokens=1000))
        await anext(stream)
        assert client.pid is not None
        os.kill(client.pid, signal.SIGKILL)
        killed = time.monotonic()
        with pytest.raises(EngineDied) as caught:
            async for _ in stream:
                pass
        with pytest.raises(EngineDied):
            await anext(client.submit(request("later")))
        return time.monotonic() - killed, str(caught.value), client.state

    seconds, cause, state = asyncio.run(run())
    assert seconds < 1.0
    assert "signal 9 (SIGKILL)" in cause
    assert state is EngineState.DEAD


def test_an_engine_that_cannot_load_says_why(tmp_path: Path):
    async def run() -> str:
        client = engine(tmp_path, fail="weights are for another model")
        await client.start()
        with pytest.raises(EngineDied) as caught:
            await client.wait_ready()
        return str(caught.value)

    assert asyncio.run(run()) == "weights are for another model"


@pytest.mark.parametrize("garbage", ["GET / HTTP/1.1\r\n\r\n", "\x00\x00\x00\x03abc"])
def test_an_engine_that_sends_no_messages_is_ended_and_named(tmp_path: Path, garbage: str):
    async def run() -> tuple[str, EngineState, int | None]:
        client = engine(tmp_path, rounds=[[1]] * 1000, garbage=garbage)
        await client.start()
        await client.wait_ready()
        with pytest.raises(EngineDied) as caught:
            async for _ in client.submit(request(max_tokens=1000)):
                pass
        return str(caught.value), client.state, client.pid

    cause, state, pid = asyncio.run(run())
    assert "bytes that are no message" in cause
    assert state is EngineState.DEAD
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists()


def test_shutdown_cuts_at_its_deadline_what_still_runs(tmp_path: Path):
    async def run() -> tuple[FinishReason | None, float]:
        client = engine(tmp_path, rounds=[[1]] * 10_000, delay_s=0.01)
        await client.start()
        await client.wait_ready()
        stream = client.submit(request(max_tokens=10_000))
        await anext(stream)
        started = time.monotonic()
        stopping = asyncio.create_task(client.shutdown(0.2))
        finish = [event.finish async for event in stream][-1]
        await stopping
        return finish, time.monotonic() - started

    finish, seconds = asyncio.run(run())
    assert finish is FinishReason.CANCELLED
    assert 0.2 <= seconds < 2.0


def test_shutdown_does_not_wait_for_an_engine_that_is_still_loading(tmp_path: Path):
    async def run() -> tuple[float, EngineState]:
        client = engine(tmp_path, load_s=30)
        await client.start()
        started = time.monotonic()
        await client.shutdown(30.0)
        return time.monotonic() - started, client.state

    seconds, state = asyncio.run(run())
    assert seconds < 2.0
    assert state is EngineState.DEAD


def test_nothing_is_submitted_before_the_engine_is_ready(tmp_path: Path):
    async def run() -> str:
        client = engine(tmp_path, load_s=30)
        await client.start()
        with pytest.raises(EngineRejected) as caught:
            await anext(client.submit(request()))
        await client.shutdown(0.0)
        return str(caught.value)

    assert "loading" in asyncio.run(run())


FRONT = """
import asyncio, sys
from lockstep.channel.client import EngineClient

async def main():
    client = EngineClient(sys.argv[1:])
    await client.start()
    print(client.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""

LOADER = """
import sys, time
from lockstep.channel.child import ChildChannel
with ChildChannel.from_fd(int(sys.argv[2])).ending_with_parent():
    time.sleep(60)
"""


@pytest.mark.parametrize("phase", ["loading", "idle"])
def test_a_killed_front_takes_its_engine_along(tmp_path: Path, phase: str):
    script = tmp_path / "script.json"
    script.write_text("{}")
    command = [sys.executable, "-c", LOADER] if phase == "loading" else [sys.executable, str(SCRIPTED), str(script)]
    with subprocess.Popen([sys.executable, "-c", FRONT, *command], stdout=subprocess.PIPE, text=True) as front:
        assert front.stdout is not None
        engine_pid = int(front.stdout.readline())
        front.kill()
    assert _is_gone(engine_pid, within_s=5.0)


def _is_gone(pid: int, within_s: float) -> bool:
    """An orphan whose new parent does not reap it is gone too."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("status", "words"),
    [(3, "exit status 3"), (-9, "signal 9 (SIGKILL)"), (-11, "signal 11 (SIGSEGV)"), (-40, "signal 40 (no standard name)")],
)
def test_every_way_to_die_has_words(status: int, words: str):
    assert words in death_cause(status)
