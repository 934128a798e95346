"""Connections that are many, slow, broken or lying: what they do to others, and to their own next request."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import resource
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from fixtures.fronts import Front, end_front, rounds, serving, start_front
from fixtures.probing import health_stays_quick
from fixtures.waiting import wait_until
from lockstep.server.connection import KEEP_ALIVE_S

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}]}
IDLE, STREAMS, SLOTS = 1000, 64, 4
Serve = Callable[..., Front]


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    script = {"rounds": rounds(*["word "] * 20), "delay_s": 0.002, "slots": SLOTS, "max_queued": STREAMS, "context": 1 << 20}
    with serving(start_front(tmp_path_factory.mktemp("busy"), script)) as front:
        yield front


def talk(front: Front, *parts: bytes, wait_s: float = 3.0, silence_s: float = 0.5) -> bytes:
    """Everything a fresh connection answers until it is closed, or silent behind a reply."""
    with socket.create_connection(("127.0.0.1", front.port)) as connection:
        connection.settimeout(wait_s)
        found = bytearray()
        try:
            for part in parts:
                connection.sendall(part)
                time.sleep(0.02)
            while data := connection.recv(1 << 16):
                found += data
                if bytes(found).endswith((b"}", b"0\r\n\r\n")):
                    connection.settimeout(silence_s)
        except (TimeoutError, ConnectionError):
            pass
        return bytes(found)


def statuses(answer: bytes) -> list[int]:
    return [int(code) for code in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer)]


async def crowd(front: Front) -> tuple[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]], list[str]]:
    """Idle connections that have asked once, then streams at once."""
    idle = []
    for _ in range(IDLE):
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.search(rb"content-length: (\d+)", head)[1]))  # type: ignore[index]
        idle.append((reader, writer))
    async with httpx.AsyncClient(base_url=front.url, timeout=60, limits=httpx.Limits(max_connections=None)) as client:
        replies = await asyncio.gather(*(client.post(CHAT, json=BODY | {"stream": True}) for _ in range(STREAMS)))
    return idle, [reply.text for reply in replies]


@pytest.fixture
def many_files() -> Iterator[None]:
    """This process may hold as many open files as there are connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 4096), hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_thousand_idle_connections_and_64_streams_lose_nothing_and_health_stays_quick(busy: Front) -> None:
    async def run() -> None:
        idle, texts = await crowd(busy)
        assert all(text.endswith("data: [DONE]\n\n") and text.count("word ") == 20 for text in texts)
        for reader, writer in idle:
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
            writer.close()

    health_stays_quick(busy, lambda: asyncio.run(run()))
    wait_until(lambda: busy.running == 0)


GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
PLAIN = json.dumps(BODY).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

BROKEN: dict[str, bytes] = {
    "both lengths": HEAD + b"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "both lengths, turned": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "two lengths": HEAD + b"Content-Length: 2\r\nContent-Length: 50\r\n\r\n{}" + SMUGGLED,
    "a list of lengths": HEAD + b"Content-Length: 2, 50\r\n\r\n{}" + SMUGGLED,
    "a signed length": HEAD + b"Content-Length: +2\r\n\r\n{}" + SMUGGLED,
    "a negative length": HEAD + b"Content-Length: -2\r\n\r\n{}" + SMUGGLED,
    "a length of 2^64": HEAD + b"Content-Length: 18446744073709551618\r\n\r\n{}" + SMUGGLED,
    "a length in hexadecimal": HEAD + b"Content-Length: 0x2\r\n\r\n{}" + SMUGGLED,
    "chunked but not last": HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "chunked in disguise": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "a space before the colon": HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "a folded header": HEAD + b"X-A: b\r\n Content-Length: 2\r\n\r\n{}" + SMUGGLED,
    "a bare line feed in a header": HEAD + b"X-A: b\nContent-Length: 2\r\n\r\n{}" + SMUGGLED,
    "a null in a header": HEAD + b"X-A: b\0c\r\nContent-Length: 2\r\n\r\n{}" + SMUGGLED,
    "a chunk of no number": CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n" + SMUGGLED,
    "a chunk of a negative number": CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n" + SMUGGLED,
    "a chunk that overflows": CHUNKED + b"fffffffffffffffff\r\n{}\r\n0\r\n\r\n" + SMUGGLED,
    "a chunk longer than it says": CHUNKED + b"2\r\n{}{}\r\n0\r\n\r\n" + SMUGGLED,
    "no version": b"GET /health\r\n\r\n" + SMUGGLED,
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SMUGGLED,
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "noise": bytes(range(256)) * 8,
    "noise without end": bytes(range(256)) * 800,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_request_with_two_readings_is_refused_and_what_follows_it_is_never_read(busy: Front, name: str) -> None:
    answer = talk(busy, BROKEN[name])
    found = statuses(answer)
    assert len(found) <= 1, answer
    assert all(400 <= status < 500 or status == 505 for status in found), answer
    assert b'"data"' not in answer
    assert statuses(talk(busy, GET)) == [200]


WHOLE: dict[str, tuple[bytes, list[int]]] = {
    "two in one packet": (GET + GET, [200, 200]),
    "chunks of one byte": (CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in PLAIN) + b"0\r\n\r\n" + GET, [200, 200]),
    "chunks with extensions and trailers": (CHUNKED + b"%x;a=b\r\n%s\r\n0\r\nX-T: 1\r\n\r\n" % (len(PLAIN), PLAIN) + GET, [200, 200]),
    "a body behind GET": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello" + GET, [200, 200]),
    "a body behind DELETE of nothing": (b"DELETE /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello" + GET, [404, 200]),
    "a body nobody serves": (b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello" + GET, [404, 200]),
    "a method nobody serves": (b"PATCH /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello" + GET, [405, 200]),
    "a refused body": (HEAD + b"Content-Length: 5\r\n\r\nhello" + GET, [400, 200]),
    "an upgrade": (b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", [200]),
    "an empty line before": (b"\r\n\r\n" + GET, [200]),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_odd_but_whole_requests_leave_the_connection_in_step(busy: Front, name: str) -> None:
    data, wanted = WHOLE[name]
    assert statuses(talk(busy, data)) == wanted


def test_a_body_that_comes_behind_its_answer_is_no_head(busy: Front) -> None:
    head = b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n"
    assert statuses(talk(busy, head, *[b"x" * 50_000] * 4, GET, GET)) == [404, 200, 200]


def test_every_cut_of_a_request_into_packets_is_read_the_same(busy: Front) -> None:
    data = HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(PLAIN), PLAIN) + GET
    with ThreadPoolExecutor(8) as pool:
        answers = pool.map(lambda at: talk(busy, data[:at], data[at:]), range(1, len(data), 7))
    assert {tuple(statuses(answer)) for answer in answers} == {(200, 200)}


def test_heads_without_end_are_refused(busy: Front) -> None:
    for head in (
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 70_000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"a" * 900_000,
        b"GET /" + b"a" * 900_000,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: b\r\n" * 200 + b"\r\n",
    ):
        answer = talk(busy, head)
        assert statuses(answer) == [431], answer[:200]
        assert statuses(talk(busy, GET)) == [200]


def test_expect_continue_is_answered_at_once_or_refused_before_the_body(busy: Front) -> None:
    head = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", busy.port)) as connection:
        connection.settimeout(3)
        connection.sendall(head % len(PLAIN))
        assert connection.recv(100).startswith(b"HTTP/1.1 100 ")
        connection.sendall(PLAIN)
        assert connection.recv(100).startswith(b"HTTP/1.1 200 ")
    assert statuses(talk(busy, head % (200 << 20))) == [413]


def test_who_is_silent_within_a_request_is_let_go_and_nobody_else(tmp_path: Path) -> None:
    front = start_front(tmp_path, {"rounds": rounds("x")}, HEAD_S=0.5, BODY_SILENCE_S=0.5)
    try:
        front.wait_for("/health/ready", 200)
        for parts in ((), (b"GET /hea",), (b"\r\n",), (GET, b"GE"), (HEAD + b"Content-Length: 100\r\n\r\n{",), (CHUNKED + b"5\r\n{",)):
            began = time.monotonic()
            answer = talk(front, *parts, wait_s=5, silence_s=2)
            assert statuses(answer)[-1] == 408, (parts, answer)
            assert time.monotonic() - began < 3
        slow = HEAD + b"Content-Length: %d\r\n\r\n" % len(PLAIN), *(PLAIN[at : at + 1] for at in range(len(PLAIN)))
        assert statuses(talk(front, *slow)) == [200]
        with socket.create_connection(("127.0.0.1", front.port)) as connection:
            connection.settimeout(3)
            for _ in range(2):
                connection.sendall(GET)
                answer = b""
                while not answer.endswith(b"}"):
                    # Head and body may come in packets of their own.
                    answer += (data := connection.recv(1 << 16))
                    assert data, answer
                assert statuses(answer) == [200]
                time.sleep(1.2)
    finally:
        end_front(front)


def test_one_connection_too_many_is_refused_in_words(tmp_path: Path) -> None:
    front = start_front(tmp_path, {"rounds": rounds("x")}, MAX_CONNECTIONS=3)
    try:
        front.wait_for("/health/ready", 200)
        held = [socket.create_connection(("127.0.0.1", front.port)) for _ in range(2)]
        answer = talk(front)
        assert statuses(answer) == [503]
        assert b"Retry-After: " in answer
        for one in held:
            one.close()
        wait_until(lambda: statuses(talk(front, GET)) == [200])
    finally:
        end_front(front)


def test_an_idle_connection_outlives_what_clients_keep_theirs_for(busy: Front) -> None:
    """Pools hold connections from 15 s (aiohttp) to 90 s (Go); a server that closes first makes their next request fail."""
    assert KEEP_ALIVE_S >= 120
    connection = http.client.HTTPConnection("127.0.0.1", busy.port, timeout=3)
    connection.connect()
    same = connection.sock
    for idle_s in (0.0, 6.5):
        time.sleep(idle_s)
        connection.request("GET", "/health")
        reply = connection.getresponse()
        assert (reply.status, connection.sock is same, bool(reply.read())) == (200, True, True)
    connection.close()


def test_an_idle_connection_is_closed_when_its_time_is_over_and_not_before(tmp_path: Path) -> None:
    front = start_front(tmp_path, {"rounds": rounds("x")}, KEEP_ALIVE_S=2)
    try:
        front.wait_for("/health/ready", 200)
        with socket.create_connection(("127.0.0.1", front.port)) as connection:
            connection.settimeout(10)
            connection.sendall(GET)
            assert connection.recv(1 << 16)
            began = time.monotonic()
            while connection.recv(1 << 16):
                pass
            assert 1.5 < time.monotonic() - began < 8
    finally:
        end_front(front)


def test_who_reads_a_byte_a_second_is_cut_and_holds_up_nobody(tmp_path: Path) -> None:
    script = {"rounds": rounds(*["word "] * 6000, end=False), "slots": 2, "context": 8192}
    front = start_front(tmp_path, script, READ_S=2)
    try:
        front.wait_for("/health/ready", 200)
        body = json.dumps(BODY | {"stream": True, "logprobs": True, "top_logprobs": 20, "loop_guard": False, "max_tokens": 6000}).encode()
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", front.port))
            slow.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            assert slow.recv(1)
            began = time.monotonic()
            quick = front.http.post(CHAT, json=BODY | {"stream": True, "max_tokens": 50, "loop_guard": False})
            assert quick.text.endswith("data: [DONE]\n\n")
            assert time.monotonic() - began < 3
            before = memory_kib(front)
            for _ in range(10):
                time.sleep(1)
                assert slow.recv(1)
            assert memory_kib(front) - before < 60_000
            rest = bytearray()
            try:
                while data := slow.recv(1 << 20):
                    rest += data
            except ConnectionError:
                pass
            assert b"[DONE]" not in rest, "it was never cut"
        wait_until(lambda: front.running == 0)
    finally:
        end_front(front)


def memory_kib(front: Front) -> int:
    [line] = [line for line in Path(f"/proc/{front.process.pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1])
