"""Answers that come before all of a request has: who sends first and reads then is told too, and nobody sends for ever."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import requests

from api.test_connections import BODY, CHAT, statuses
from fixtures.fronts import Front, end_front, rounds, serving, start_front


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with serving(start_front(tmp_path_factory.mktemp("busy"), {"rounds": rounds("word ")})) as front:
        yield front


LARGE = b'{"prompt":"%s"}' % (b"a" * (80 << 20))


def pieces() -> Iterator[bytes]:
    yield from (LARGE[at : at + (1 << 16)] for at in range(0, len(LARGE), 1 << 16))


def by_http_client(url: str, body: bytes | Iterator[bytes]) -> tuple[int, str]:
    """It sends all of a body before it reads, and fails if it cannot."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request("POST", "/v1/completions", body, encode_chunked=True)
    reply = connection.getresponse()
    return reply.status, reply.read().decode()


def by_requests(url: str, body: bytes | Iterator[bytes]) -> tuple[int, str]:
    reply = requests.post(f"{url}/v1/completions", body, timeout=30)
    return reply.status_code, reply.text


def by_httpx(url: str, body: bytes | Iterator[bytes]) -> tuple[int, str]:
    reply = httpx.post(f"{url}/v1/completions", content=body, timeout=30)
    return reply.status_code, reply.text


@pytest.mark.parametrize("headers", [{}, {"connection": "close"}], ids=["kept", "to be closed"])
def test_an_answer_that_comes_before_the_body_reaches_a_client_that_sends_all_of_it_first(busy: Front, headers: dict[str, str]) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", busy.port, timeout=30)
    connection.request("POST", "/nothing", LARGE, headers)
    assert connection.getresponse().status == 404


@pytest.mark.parametrize("client", [by_http_client, by_requests, by_httpx])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
def test_a_client_that_sends_too_much_reads_why_it_is_refused(
    busy: Front, client: Callable[[str, bytes | Iterator[bytes]], tuple[int, str]], is_chunked: bool
) -> None:
    for _ in range(3):
        status, text = client(busy.url, pieces() if is_chunked else LARGE)
        assert (status, json.loads(text)["error"]["code"]) == (413, "request_too_large")
        assert busy.http.post(CHAT, json=BODY).status_code == 200


def sent_for_s(connection: socket.socket, part: bytes, most_s: float = 10.0) -> float:
    """How long the other side takes `part` ten times a second."""
    began = time.monotonic()
    try:
        while time.monotonic() - began < most_s:
            connection.sendall(part)
            time.sleep(0.1)
    except ConnectionError:
        pass
    return time.monotonic() - began


def test_what_follows_a_refused_body_is_dropped_for_so_long_and_so_much_only(tmp_path: Path) -> None:
    front = start_front(tmp_path, {"rounds": rounds("x")}, LINGER_S=1.5, LINGER_BYTES=1 << 20, BODY_SILENCE_S=1.5)
    refused, unserved = b"/v1/completions", b"/nothing"
    try:
        front.wait_for("/health/ready", 200)
        for path, status, part, most_s in ((refused, 413, b"x", 10.0), (refused, 413, b"x" * (1 << 19), 1.2), (unserved, 404, b"x", 10.0)):
            with socket.create_connection(("127.0.0.1", front.port)) as connection:
                connection.settimeout(5)
                connection.sendall(b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (path, 200 << 20))
                assert statuses(connection.recv(1 << 16)) == [status]
                assert sent_for_s(connection, part) < most_s, path
        assert front.http.get("/health").status_code == 200
    finally:
        end_front(front)
