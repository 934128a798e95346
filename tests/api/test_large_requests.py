"""Requests that are large, refused or served: neither `/health` nor anybody's stream waits for them."""

import asyncio
import base64
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.test_connections import BODY, CHAT
from fixtures.fronts import Front, rounds, serving, start_front
from fixtures.hostile_media import honest_clip
from fixtures.probing import health_stays_quick
from lockstep.media.limits import LIMITS
from lockstep.server.reader import BodyReader
from lockstep.server.schema import ChatBody
from lockstep.server.turns import TextPart


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with serving(
        start_front(tmp_path_factory.mktemp("busy"), {"rounds": rounds("word ", "word "), "max_queued": 64, "context": 1 << 20})
    ) as front:
        yield front


def post_from_a_process(front: Front, path: Path, route: str) -> str:
    """Status of a request whose body is a file."""
    code = """
import http.client, sys
connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=60)
connection.request("POST", sys.argv[2], open(sys.argv[3], "rb"), {"content-type": "application/json"})
print(connection.getresponse().status)
"""
    command = [sys.executable, "-c", code, str(front.port), route, str(path)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


PIXELS = "iVBO" * 7_500_000
CLIP = base64.encodebytes(b"\0\0\0\x18ftypisom" + bytes(25_000_000)).decode()
LARGE: dict[str, Any] = {
    "text": {"messages": [{"role": "user", "content": "hello world <x> 12 or so " * 1_200_000}]},
    "one word": {"messages": [{"role": "user", "content": "a" * 30_000_000}]},
    "a picture": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "data:image/png;base64," + PIXELS}]}]},
    "a clip": {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": "data:video/mp4;base64," + CLIP}]}]},
    "many values": {"messages": [{"role": "user", "content": "a"}], "metadata": {str(at): at for at in range(1_500_000)}},
    "many messages": {"messages": [{"role": "user", "content": "a"}] * 700_000},
}  # fmt: skip


IDS = [300 + at % 500 for at in range(100_000)]
PLAIN_TOOL = {
    "type": "function",
    "function": {"name": "f", "parameters": {"properties": {f"p{at}": {"type": "string"} for at in range(40)}}},
}
TURN = [
    {"role": "user", "content": "go on"},
    {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]},
    {"role": "tool", "tool_call_id": "1", "content": "done"},
]
SERVED: dict[str, tuple[str, dict[str, Any]]] = {
    "turns with tools": (CHAT, {"messages": TURN * 3000}),
    "blocks": ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}] * 4}] * 5000}),
    "a stored item": ("/v1/responses", {"input": [{"role": "user", "content": "hi"}, {"type": "computer_call", "x": "a" * 50_000_000}]}),
    "tools to choose from": (CHAT, BODY | {"tool_choice": "required", "tools": [
        {"type": "function", "function": PLAIN_TOOL["function"] | {"name": f"f{at}"}} for at in range(60)]}),
    "what nobody reads": (CHAT, BODY | {"seen": {str(at): at for at in range(100_000)}}),
    "ids that come back": ("/v1/completions", {"prompt": IDS, "max_tokens": 1, "echo": True, "return_token_ids": True}),
    "logarithms of a prompt": ("/v1/completions", {"prompt": IDS[:20_000], "max_tokens": 1, "echo": True, "logprobs": 5, "stream": True}),
    "many prompts": ("/v1/completions", {"prompt": ["hello there " * 20] * 60, "max_tokens": 1}),
    "ids to read": ("/detokenize", {"tokens": [40 + at % 500 for at in range(700_000)]}),
    "tokens and their texts": ("/tokenize", {"prompt": "hello world <x> 12 " * 20_000, "return_token_strs": True}),
}  # fmt: skip


# Five hundred tools, whose form is some megabytes, and one picture far too large, in the words of a dialect.
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "hundreds of tools to choose from": (CHAT, BODY | {"tool_choice": "required", "tools": [
        {"type": "function", "function": PLAIN_TOOL["function"] | {"name": f"f{at}"}} for at in range(500)]}),
    "a picture in a block": ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXELS * 3}}]}]}),
}  # fmt: skip


def health_while(busy: Front, path: Path, route: str, status: int) -> None:
    def post() -> None:
        assert post_from_a_process(busy, path, route) == str(status)

    health_stays_quick(busy, post)


@pytest.mark.parametrize("name", LARGE)
def test_thirty_megabytes_do_not_hold_up_health(busy: Front, tmp_path: Path, name: str) -> None:
    path = tmp_path / "body.json"
    path.write_text(json.dumps(LARGE[name]))
    health_while(busy, path, CHAT, 400)


@pytest.mark.parametrize("name", SERVED)
def test_what_is_large_and_served_does_not_hold_up_health_either(busy: Front, tmp_path: Path, name: str) -> None:
    path, (route, body) = tmp_path / "body.json", SERVED[name]
    path.write_text(json.dumps(body))
    health_while(busy, path, route, 200)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_large_and_refused_late_does_not_hold_up_health_either(busy: Front, tmp_path: Path, name: str) -> None:
    path, (route, body) = tmp_path / "body.json", REFUSED[name]
    path.write_text(json.dumps(body))
    health_while(busy, path, route, 400)


def test_the_largest_clip_does_not_hold_up_health_on_its_way_through_all_processes(busy: Front, tmp_path: Path) -> None:
    file = honest_clip(frames=16, rate=2, size=(2048, 1536))
    file += struct.pack(">I4s", LIMITS["clip"].file_bytes - len(file), b"free")
    file += bytes(LIMITS["clip"].file_bytes - len(file))
    address = "data:video/mp4;base64," + base64.b64encode(file).decode()
    path = tmp_path / "body.json"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": address}}]}]}))
    health_while(busy, path, CHAT, 200)


def test_long_texts_come_back_from_the_reader_as_they_were_sent(capfd: pytest.CaptureFixture[str]) -> None:
    texts = ["é" * (1 << 19), "a" * ((1 << 19) + 1), "\U0001f600b" * (1 << 20), "short", "a" * ((1 << 19) + 1)]
    parts = [{"type": "text", "text": text} for text in texts]
    reader = BodyReader()
    try:
        for _ in range(2):
            body = asyncio.run(reader.read(json.dumps({"messages": [{"role": "user", "content": parts}]}).encode(), ChatBody))
            found = body.messages[0].content
            assert isinstance(found, list)
            assert [part.text for part in found if isinstance(part, TextPart)] == texts
    finally:
        reader.close()
    assert capfd.readouterr().err == "", "what the reader says would be in the server's log"
