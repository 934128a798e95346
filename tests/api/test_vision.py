"""Pictures and clips through the API: taken as data URLs, refused with a reason, never fetched, the same bits every time."""

from __future__ import annotations

import base64
import io
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import psutil
import pytest
from embedded.make.data.drawing import Shape, paint, rgb
from PIL import Image

from fixtures.fronts import EOS, TOKENIZER, Front, end_front, events, rounds, serving, start_front
from fixtures.hostile_media import honest_clip, honest_picture, hostile_files
from fixtures.processes import children

CHAT = "/v1/chat/completions"
IMAGE = TOKENIZER.added["<|image|>"]
TYPES = {"picture": "image_url", "clip": "video_url"}
LATE_S = 1.0


def data_url(data: bytes, kind: str = "application/octet-stream") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def part(address: str, kind: str = "picture", **more: str) -> dict[str, Any]:
    return {"type": TYPES[kind], TYPES[kind]: {"url": address} | more}


def body(*parts: dict[str, Any], words: str = "What is it?", **more: Any) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": words}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0} | more


def drawn(kind: str, color: str) -> str:
    out = io.BytesIO()
    Image.fromarray(rgb(paint([Shape(kind, color, 56, 56, 20)], "white"))).save(out, "PNG")
    return data_url(out.getvalue(), "image/png")


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with serving(start_front(tmp_path_factory.mktemp("seeing"), {"rounds": rounds("I see.")})) as started:
        yield started


def refused(front: Front, sent: dict[str, Any], code: str) -> dict[str, Any]:
    reply = front.http.post(CHAT, json=sent)
    assert reply.status_code == 400, reply.text[:300]
    error = reply.json()["error"]
    assert error["code"] == code, error
    assert len(error["message"]) < 400
    return error


def test_health_and_models_say_what_can_be_shown(seeing: Front) -> None:
    assert seeing.http.get("/v1/models").json()["data"][0]["input_modalities"] == ["text", "image", "video"]
    until = time.monotonic() + 20
    while not (told := seeing.http.get("/health").json()["vision"])["sandbox"]:
        assert time.monotonic() < until
        time.sleep(0.05)
    assert told["enabled"] is True
    assert told["sandbox"].endswith("rlimits")


def test_hostile_files_are_a_400_that_names_the_part_and_the_server_stays_small(seeing: Front) -> None:
    files, process = hostile_files(), psutil.Process(seeing.process.pid)
    good = part(data_url(honest_picture()))
    assert seeing.http.post(CHAT, json=body(good)).status_code == 200

    def refused_after_s(name: str) -> float:
        began, (kind, data) = time.monotonic(), files[name]
        error = refused(seeing, body(good, part(data_url(data), kind)), "invalid_media")
        assert error["param"] == f"messages[0].content[1].{TYPES[kind]}", name
        return time.monotonic() - began

    slow = [name for name in files if refused_after_s(name) > LATE_S]
    assert [name for name in slow if refused_after_s(name) > LATE_S] == [], "what is slow is slow again"
    before = process.memory_info().rss
    for kind, data in files.values():
        refused(seeing, body(part(data_url(data), kind)), "invalid_media")
    assert process.memory_info().rss - before < 24 << 20
    assert seeing.http.post(CHAT, json=body(good)).status_code == 200


def test_no_address_is_ever_fetched_and_all_get_one_answer(seeing: Front) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0.3)
        port = trap.getsockname()[1]
        host = f"127.0.0.1:{port}"
        addresses = [
            f"http://{host}/a.png", f"https://{host}/a.png", f"ftp://{host}/a.png", f"HTTP://{host}/", f"//{host}/a.png", f"{host}/a.png",
            f"http://user:word@{host}/a.png", f"http://{host}/redirect?to=http://{host}/", f"http://2130706433:{port}/", f"gopher://{host}/",
            f"http://[::ffff:127.0.0.1]:{port}/", "file:///etc/passwd", "file://localhost/etc/passwd", "/etc/passwd", "", "data:",
            f"data:text/plain,http://{host}/", f" http://{host}/", "blob:null/1", "sandbox:/a.png", "about:blank",
        ]  # fmt: skip
        for kind in TYPES:
            told = {refused(seeing, body(part(address, kind)), "invalid_media")["message"] for address in addresses}
            assert len(told) == 1
        with pytest.raises(TimeoutError):
            trap.accept()


def test_base64_may_be_wrapped_and_unpadded_and_the_address_a_bare_string(seeing: Front) -> None:
    address = data_url(honest_picture(size=(31, 29)))
    wrapped = "\n".join(address[at : at + 70] if at else address[:70] for at in range(0, len(address), 70)).rstrip("=")
    bare = {"type": "image_url", "image_url": wrapped}
    assert seeing.http.post(CHAT, json=body(bare)).status_code == 200
    refused(seeing, body(part(address[:-8] + "!!!!!!!!")), "invalid_media")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ([{"type": "image_url"}], "part 0"),
        ([{"type": "image_url", "image_url": {"url": 5}}], "part 0"),
        ([{"type": "image_url", "image_url": {"url": "data:", "detail": "huge"}}], "detail"),
        ([{"type": "input_audio", "input_audio": {}}], "input_audio"),
    ],
)
def test_other_parts_are_refused_by_name(seeing: Front, content: list[Any], found: str) -> None:
    reply = seeing.http.post(CHAT, json={"messages": [{"role": "user", "content": content}]})
    assert reply.status_code == 400
    assert found in reply.json()["error"]["message"]
    system = [{"role": "system", "content": [part(drawn("circle", "red"))]}, {"role": "user", "content": "?"}]
    assert "user and tool" in seeing.http.post(CHAT, json={"messages": system}).json()["error"]["message"]


def test_amounts_are_bounded(seeing: Front) -> None:
    small = part(drawn("circle", "red"))
    assert "51 pictures" in refused(seeing, body(*[small] * 51), "too_much_media")["message"]
    assert "5 clips" in refused(seeing, body(*[part("data:", "clip")] * 5), "too_much_media")["message"]
    large = part(data_url(honest_picture("JPEG", (2400, 1800))))
    assert "maximum context length is 4096" in refused(seeing, body(large), "context_length_exceeded")["message"]
    low = seeing.http.post(CHAT, json=body(part(large["image_url"]["url"], detail="low")))
    assert low.status_code == 200
    assert 200 < low.json()["usage"]["prompt_tokens"] < 400


def test_the_time_a_picture_takes_counts_for_its_requests_deadline(seeing: Front) -> None:
    sent = body(part(data_url(honest_picture("JPEG", (1200, 900), seed=9)), detail="low"))
    late = seeing.http.post(CHAT, json=sent | {"deadline_s": 0.01})
    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert seeing.http.post(CHAT, json=sent | {"deadline_s": 60}).status_code == 200


def test_without_vision_a_users_picture_is_refused_and_a_tools_becomes_a_note(serve: Callable[..., Front]) -> None:
    front = serve({"rounds": rounds("ok")}, "--no-vision")
    picture = part(drawn("circle", "red"))
    assert front.http.get("/health").json()["vision"] == {"enabled": False, "sandbox": ""}
    assert front.http.get("/v1/models").json()["data"][0]["input_modalities"] == ["text"]
    assert "text-only" in refused(front, body(picture), "no_vision")["message"]
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "seen: "}, picture]},
    ]
    assert front.http.post(CHAT, json={"messages": messages}).status_code == 200
    ids = front.http.post("/tokenize", json={"messages": messages}).json()["tokens"]
    assert "seen: [a picture that this server cannot show" in TOKENIZER.decode(ids)
    assert IMAGE not in ids
    assert not decoders(front)


def test_pictures_in_tool_results_stand_there(seeing: Front) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": [part(drawn("circle", "red"))]},
    ]
    text = TOKENIZER.decode(seeing.http.post("/tokenize", json={"messages": messages}).json()["tokens"])
    assert f"<tool_response><|begin_of_image|>{'<|image|>' * 16}<|end_of_image|></tool_response>" in text


def test_the_openai_client_shows_pictures_and_clips_whole_and_streamed(embedded: Front) -> None:
    client = openai.OpenAI(base_url=embedded.url + "/v1", api_key="none", max_retries=0)
    for shown in (part(drawn("square", "blue")), part(data_url(honest_clip(frames=20, size=(112, 112)), "video/mp4"), "clip")):
        messages: Any = body(shown)["messages"]
        whole = client.chat.completions.create(model="glm-5.3-flash", messages=messages, max_tokens=8, temperature=0)
        stream = client.chat.completions.create(model="glm-5.3-flash", messages=messages, max_tokens=8, temperature=0, stream=True)
        assert whole.choices[0].message.content
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole.choices[0].message.content


def test_a_picture_gives_the_same_bits_alone_cached_and_streamed_and_another_picture_others(embedded: Front) -> None:
    def ask(address: str, **more: Any) -> dict[str, Any]:
        return embedded.http.post(CHAT, json=body(part(address), words="Describe the picture. " * 12, **more)).json()

    circle, square = drawn("circle", "red"), drawn("square", "green")
    fresh = ask(circle, cache_salt="a")
    again, other, apart = ask(circle, cache_salt="a"), ask(square, cache_salt="a"), ask(circle, cache_salt="b", draft=False)
    assert fresh["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert fresh["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"]
    for name in ("token_sha", "state_hash"):
        assert fresh["lockstep"][name] == again["lockstep"][name] == apart["lockstep"][name]
    assert fresh["lockstep"]["state_hash"] != other["lockstep"]["state_hash"]
    chunks = events(embedded.http.post(CHAT, json=body(part(circle), words="Describe the picture. " * 12, stream=True)).text)
    assert chunks[-2]["lockstep"]["state_hash"] == fresh["lockstep"]["state_hash"]


def decoders(front: Front) -> set[int]:
    return children(front.process.pid, "pixels", below=True)


@pytest.mark.parametrize("stream", [False, True])
def test_pictures_of_a_client_that_left_are_not_decoded(seeing: Front, stream: bool) -> None:
    pictures = [part(data_url(honest_picture(seed=100 * stream + at))) for at in range(50)]
    with pytest.raises(httpx.ReadTimeout):
        seeing.http.post(CHAT, json=body(*pictures, stream=stream), timeout=httpx.Timeout(30.0, read=0.3))
    time.sleep(1.0)
    before = decoders(seeing)
    time.sleep(1.0)
    assert decoders(seeing) == before
    assert len(before) <= 1


def test_workers_end_with_the_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    front = start_front(tmp_path_factory.mktemp("ending"), {"rounds": [[EOS]]})
    front.wait_for("/health/ready", 200)
    assert front.http.post(CHAT, json=body(part(drawn("circle", "red")))).status_code == 200
    started = psutil.Process(front.process.pid).children(recursive=True)
    assert decoders(front)
    assert front.stop() == 0
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not alive
    end_front(front)
