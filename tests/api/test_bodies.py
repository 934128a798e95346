"""Bodies in pieces are read, and a body whose end is in doubt ends the connection: the next request is never garbled."""

from __future__ import annotations

import json
import socket

import pytest

from fixtures.fronts import Front

BODY = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
PIECES = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (BODY[:7], BODY[7:20], BODY[20:])) + b"0\r\n\r\n"


def answers(front: Front, sent: bytes) -> bytes:
    """All that comes until the server closes, or has nothing more to say for a while."""
    with socket.create_connection(("127.0.0.1", front.port), timeout=2) as connection:
        connection.sendall(sent)
        came = b""
        try:
            while piece := connection.recv(65536):
                came += piece
        except TimeoutError:
            pass
        return came


def test_a_body_in_pieces_is_read_whole_and_the_next_request_begins_behind_it(front: Front) -> None:
    came = answers(front, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + PIECES + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert came.count(b"HTTP/1.1 200") == 2
    assert b'"finish_reason"' in came


@pytest.mark.parametrize(
    "headers",
    [
        b"Transfer-Encoding: chunked\r\nContent-Length: %d\r\n" % len(PIECES),
        b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n" % len(BODY),
        b"Content-Length: 5\r\nContent-Length: 50\r\n",
    ],
)
def test_a_body_of_two_lengths_is_refused_and_nothing_behind_it_is_answered(front: Front, headers: bytes) -> None:
    came = answers(front, HEAD + headers + b"\r\n" + PIECES + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert came.startswith(b"HTTP/1.1 400")
    assert came.count(b"HTTP/1.1 ") == 1
