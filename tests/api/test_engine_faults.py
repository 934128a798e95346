"""What a client sees when the engine fails, refuses, falls silent or is cut off: the application in front of an engine made of a list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.fronts import CLOSE, EMBEDDED, EOS, TOKENIZER, events
from fixtures.waiting import until
from lockstep.channel.client import EngineState
from lockstep.config.serving import ServingOptions
from lockstep.core.errors import EngineRejected
from lockstep.core.messages import Loading, Ready, Snapshot
from lockstep.core.types import EngineRequest, FinishReason, RoundEvent, Usage
from lockstep.server.app import build_app
from lockstep.server.deployment import STALL_S, Deployment
from lockstep.server.stream import EventStream

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}]}


class ListedEngine:
    """Plays one list of steps to every request: an error is raised, a list of ids is a round, a reason ends."""

    def __init__(self, *steps: Any) -> None:
        self.steps = steps
        self.state = EngineState.READY
        self.cause = ""
        self.loading = Loading("weights", 0.5)
        self.facts: Ready | None = Ready(4096, 4, 16384, 2304, "cpu", "listed", "0")
        self.snapshot: Snapshot | None = None
        self.last_step_age_s = 0.0
        self.requests: list[EngineRequest] = []
        self.cancelled: list[str] = []

    async def submit(self, request: EngineRequest) -> AsyncGenerator[RoundEvent, None]:
        self.requests.append(request)
        for step in self.steps:
            await asyncio.sleep(0)
            if isinstance(step, Exception):
                raise step
            if request.id in self.cancelled:
                yield RoundEvent(request.id, (), FinishReason.CANCELLED, Usage(cached_tokens=99))
                return
            if isinstance(step, FinishReason):
                yield RoundEvent(request.id, (), step, Usage(), error="no memory" if step is FinishReason.FAILED else None)
            else:
                yield RoundEvent(request.id, tuple(step))

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)


def ask(engine: ListedEngine, body: dict[str, Any], path: str = CHAT, flags: tuple[str, ...] = ()) -> httpx.Response:
    site = Deployment.load(ServingOptions.from_argv(["--model", str(EMBEDDED), *flags]), engine)

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(build_app(site), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://front") as http:
            return await (http.post(path, json=body) if body else http.get(path))

    return asyncio.run(post())


ONE, TWO = TOKENIZER.encode("one "), TOKENIZER.encode("two")


def test_a_failure_in_mid_reply_is_500_whole_and_an_error_event_streamed() -> None:
    steps = (ONE, FinishReason.FAILED)
    whole = ask(ListedEngine(*steps), BODY)
    assert (whole.status_code, whole.json()["error"]["code"]) == (500, "engine_failed")
    assert "no memory" in whole.json()["error"]["message"]
    streamed = ask(ListedEngine(*steps), {**BODY, "stream": True})
    *chunks, error, done = events(streamed.text)
    assert (streamed.status_code, done) == (200, "[DONE]")
    assert error == whole.json()
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in chunks)


def test_a_reply_cut_by_the_server_is_no_finished_reply() -> None:
    whole = ask(ListedEngine(ONE, FinishReason.CANCELLED), BODY)
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "cancelled")
    assert events(ask(ListedEngine(ONE, FinishReason.CANCELLED), {**BODY, "stream": True}).text)[-2]["error"]["code"] == "cancelled"


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("code", "status"),
    [("queue_full", 429), ("draining", 503), ("context_length_exceeded", 400), ("bad_request", 400), ("unheard_of", 500)],
)
def test_a_refusal_of_the_engine_keeps_its_status_whole_and_streamed(code: str, status: int, stream: bool) -> None:
    reply = ask(ListedEngine(EngineRejected(code, "because of this")), {**BODY, "stream": stream})
    assert reply.status_code == status
    assert "because of this" in reply.json()["error"]["message"]
    assert ("retry-after" in reply.headers) == (status in (429, 503))


class CrowdedEngine(ListedEngine):
    """One slot, and a queue that others fill whenever a reply of ours has ended: each further one is refused twice."""

    def __init__(self, *steps: Any, first: int = 0) -> None:
        super().__init__(*steps)
        self.facts, self.refusals = Ready(4096, 1, 4096, 2304, "cpu", "crowded", "0"), first

    async def submit(self, request: EngineRequest) -> AsyncGenerator[RoundEvent, None]:
        if self.refusals:
            self.refusals -= 1
            raise EngineRejected("queue_full", "the queue is full", 7)
        async for event in super().submit(request):
            yield event
        self.refusals = 2


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(("path", "body"), [(CHAT, {**BODY, "n": 3}), ("/v1/completions", {"prompt": ["a", "b", "c"]})])
def test_of_several_replies_none_is_refused_once_one_has_begun(
    path: str, body: dict[str, Any], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.server.generation.AGAIN_S", 0.01)
    reply = ask(CrowdedEngine(ONE, TWO, FinishReason.STOP), {**body, "stream": stream}, path)
    assert reply.status_code == 200
    chunks = events(reply.text)[:-1] if stream else [reply.json()]
    ends = [choice["index"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    refused = ask(CrowdedEngine(ONE, first=1), {**body, "stream": stream}, path)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "7")


@pytest.mark.parametrize("stream", [True, False])
def test_a_fault_of_our_own_shows_no_inside(stream: bool) -> None:
    reply = ask(ListedEngine(KeyError("secret detail")), {**BODY, "stream": stream})
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "engine_failed")
    assert "secret detail" not in reply.text


def test_a_stop_string_cancels_the_engine_and_keeps_its_figures() -> None:
    engine = ListedEngine(ONE, TWO, TWO, FinishReason.LENGTH)
    reply = ask(engine, {**BODY, "stop": "two"}).json()
    assert engine.cancelled == [engine.requests[0].id]
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["prompt_tokens_details"]["cached_tokens"] == reply["usage"]["prompt_tokens"]


def test_reasoning_is_split_off_and_thinking_decides_where_the_reply_begins() -> None:
    steps = (TOKENIZER.encode("hm"), [*TOKENIZER.encode("m"), CLOSE, *ONE], [EOS], FinishReason.STOP)
    engine = ListedEngine(*steps)
    whole = ask(engine, {**BODY, "reasoning_effort": "low"}).json()
    message = whole["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hmm", "one ")
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] == len(TOKENIZER.encode("hm")) + len(TOKENIZER.encode("m")) + 1
    deltas = [
        chunk["choices"][0]["delta"]
        for chunk in events(ask(ListedEngine(*steps), {**BODY, "enable_thinking": True, "stream": True}).text)[:-1]
    ]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm"},
        {"reasoning_content": "m"},
        {"content": "one "},
        {},
    ]
    off = ask(ListedEngine(*steps), {**BODY, "chat_template_kwargs": {"enable_thinking": False}}, flags=("--thinking",)).json()
    assert off["choices"][0]["message"] == {"role": "assistant", "content": "hmmone "}


def test_defaults_of_sampling_are_the_published_ones() -> None:
    def request(**fields: Any) -> EngineRequest:
        engine = ListedEngine(ONE, FinishReason.LENGTH)
        assert ask(engine, BODY | fields).status_code == 200
        return engine.requests[0]

    plain = request()
    assert (plain.sampling.temperature, plain.sampling.top_k, plain.sampling.top_p, plain.sampling.min_p) == (1.0, 20, 0.95, 0.0)
    assert plain.sampling.seed == request().sampling.seed != request(messages=[{"role": "user", "content": "ho"}]).sampling.seed
    assert plain.max_tokens == 4096 - len(plain.prompt_ids)
    assert request(max_tokens=0).max_tokens == plain.max_tokens
    assert plain.stop_ids == {2240, 2247, 2249}
    assert request(seed=-1).sampling.seed == 2**64 - 1
    assert request(temperature=5e-324).sampling.temperature == 0.0
    assert (request(top_k=-1).sampling.top_k, request(top_k=0).sampling.top_k) == (0, 0)
    assert not request(draft=False).draft
    assert request(stop_token_ids=[7], ignore_eos=True, min_tokens=3).stop_ids >= {7}


def test_a_stalled_engine_and_a_draining_server_say_so() -> None:
    engine = ListedEngine()
    engine.last_step_age_s = STALL_S + 1
    health = ask(engine, {}, "/health")
    assert (health.status_code, health.json()["status"]) == (503, "stalled")
    assert ask(engine, {}, "/ping").status_code == 503
    engine = ListedEngine()
    engine.state = EngineState.DRAINING
    assert ask(engine, {}, "/health/ready").json() == {"ready": False, "reason": "draining"}
    assert ask(engine, BODY).status_code == 503
    assert ask(engine, {}, "/health").status_code == 200


async def _serve_stream(stream: EventStream, sent: list[dict[str, Any]], leave_after_s: float = 60) -> None:
    async def receive() -> dict[str, Any]:
        await asyncio.sleep(leave_after_s)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await stream({"type": "http", "method": "POST", "headers": []}, receive, send)


def test_silence_is_filled_with_comments_and_a_client_that_leaves_ends_the_source() -> None:
    closed: list[str] = []

    def bodies(sent: list[dict[str, Any]]) -> list[bytes]:
        return [message["body"] for message in sent if message["type"] == "http.response.body"]

    async def source(sent: list[dict[str, Any]], *behind: int) -> AsyncGenerator[bytes, None]:
        """An event each time that so many bodies were sent."""
        try:
            for count in behind:
                await until(lambda count=count: len(bodies(sent)) == count, 0.001)
                yield b"data: x\n\n"
        finally:
            closed.append("closed")

    silent: list[dict[str, Any]] = []
    asyncio.run(_serve_stream(EventStream(source(silent, 2), keepalive_s=0.1), silent))
    assert bodies(silent) == [b": keepalive\n\n", b": keepalive\n\n", b"data: x\n\n", b""]
    assert [message.get("more_body") for message in silent[1:]] == [True, True, True, False]
    assert closed == ["closed"]
    slow: list[dict[str, Any]] = []
    asyncio.run(_serve_stream(EventStream(source(slow, 1, 3), keepalive_s=0.1, alive=b"event: ping\n\n"), slow))
    assert bodies(slow) == [b": keepalive\n\n", b"data: x\n\n", b"event: ping\n\n", b"data: x\n\n", b""]
    left: list[dict[str, Any]] = []
    asyncio.run(_serve_stream(EventStream(source(left, 1)), left, leave_after_s=0.05))
    assert left == []
    assert closed == ["closed"] * 3


def test_text_files_of_a_checkpoint_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"tokenizer\.json"):
        Deployment.load(ServingOptions.from_argv(["--model", str(tmp_path)]), ListedEngine())
