"""Requests that wait, on the shipped command with one slot: the bounded queue, deadlines, priorities, leaving while queued."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from fixtures.fronts import Front, end_front, events, serving, start_embedded
from fixtures.waiting import wait_until

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Count to five."}], "max_tokens": 4}
ENDLESS = BODY | {"max_tokens": 16000, "ignore_eos": True}
QUEUED, QUEUED_TOKENS = 3, 160


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    bounds = ("--max-queued", str(QUEUED), "--max-queued-tokens", str(QUEUED_TOKENS))
    with serving(start_embedded(tmp_path_factory.mktemp("waiting"), "--context", "16384", "--parallel", "1", *bounds), 50) as started:
        yield started


def health(front: Front, name: str) -> int:
    return front.http.get("/health").json()[name]


@contextmanager
def busy_slot(front: Front) -> Iterator[None]:
    """The only slot is taken for the time of the block."""
    wait_until(lambda: health(front, "requests_running") == health(front, "queued") == 0)
    with front.http.stream("POST", CHAT, json=ENDLESS | {"stream": True}) as reply:
        # A dropped iterator would close the connection.
        chunks = reply.iter_bytes()
        next(chunks)
        yield
    wait_until(lambda: health(front, "requests_running") == 0)


def ask(front: Front, **fields: object) -> httpx.Response:
    return front.http.post(CHAT, json=BODY | fields, timeout=30)


def prompt_of(words: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": "one " * words}]


@pytest.mark.parametrize("stream", [True, False])
def test_a_full_queue_is_a_429_that_says_when_to_come_again(front: Front, stream: bool) -> None:
    with ThreadPoolExecutor(QUEUED) as pool:
        with busy_slot(front):
            waiting = [pool.submit(ask, front) for _ in range(QUEUED)]
            wait_until(lambda: health(front, "queued") == QUEUED)
            refused = ask(front, stream=stream)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
            assert 1 <= int(refused.headers["retry-after"]) <= 600
        assert [reply.result().status_code for reply in waiting] == [200] * QUEUED


def test_a_queue_full_of_tokens_is_a_429_that_names_them(front: Front) -> None:
    with ThreadPoolExecutor(1) as pool:
        with busy_slot(front):
            waiting = pool.submit(ask, front, messages=prompt_of(100))
            wait_until(lambda: health(front, "queued_tokens") > 100)
            refused = ask(front, messages=prompt_of(100))
            assert refused.status_code == 429
            assert f"{QUEUED_TOKENS} tokens (--max-queued-tokens)" in refused.json()["error"]["message"]
            assert int(refused.headers["retry-after"]) >= 1
        assert waiting.result().status_code == 200


def test_a_deadline_that_passes_in_the_queue_is_a_504_nobody_should_retry(front: Front) -> None:
    for stream in (True, False):
        with busy_slot(front):
            late = ask(front, deadline_s=0.3, stream=stream)
            assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
            assert late.headers["x-should-retry"] == "false"
            wait_until(lambda: health(front, "queued") == 0)
            errors = front.http.get("/health").json()["recent_errors"]
            assert 504 not in [error["status"] for error in errors], "it was the request's own"


def test_a_deadline_that_passes_in_the_reply_cuts_it(front: Front) -> None:
    whole = ask(front, **ENDLESS, deadline_s=0.5).json()  # type: ignore[arg-type]
    assert whole["choices"][0]["finish_reason"] == "length"
    assert 0 < whole["usage"]["completion_tokens"] < 16000
    chunks = events(ask(front, **ENDLESS, deadline_s=0.5, stream=True).text)  # type: ignore[arg-type]
    assert chunks[-1] == "[DONE]"
    assert chunks[-2]["choices"][0]["finish_reason"] == "length"


def test_of_those_who_wait_the_lower_priority_number_goes_first(front: Front) -> None:
    order: list[str] = []

    def note(name: str) -> Callable[[Future[httpx.Response]], None]:
        return lambda _: order.append(name)

    with ThreadPoolExecutor(QUEUED) as pool, busy_slot(front):
        for at, priority in enumerate(("background", 0, "high"), start=1):
            pool.submit(ask, front, priority=priority).add_done_callback(note(str(priority)))
            wait_until(lambda at=at: health(front, "queued") == at)
    assert order == ["high", "0", "background"]


def test_keys_take_turns_however_many_requests_one_of_them_sends(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("crowd: key-of-many\nlone: key-of-one\n")
    order: list[str] = []

    def send(key: str) -> None:
        headers = {"Authorization": f"Bearer {key}"}
        assert httpx.post(shared.url + CHAT, json=BODY, headers=headers, timeout=30).status_code == 200
        order.append(key)

    shared = start_embedded(tmp_path, "--context", "16384", "--parallel", "1", "--api-key-file", str(keys))
    shared.http.headers["Authorization"] = "Bearer key-of-many"
    try:
        shared.wait_for("/health/ready", 200, limit_s=50)
        with ThreadPoolExecutor(4) as pool, busy_slot(shared):
            for at, key in enumerate(["key-of-many"] * 3 + ["key-of-one"], start=1):
                pool.submit(send, key)
                wait_until(lambda at=at: health(shared, "queued") == at)
        # The running request counts too, so the crowd has had its turn.
        assert order == ["key-of-one"] + ["key-of-many"] * 3
    finally:
        end_front(shared)


@pytest.mark.parametrize("value", [9, -9, 1.5, True, "urgent", "1", [], {}])
def test_a_priority_out_of_bounds_is_a_400_that_names_them(front: Front, value: object) -> None:
    refused = ask(front, priority=value)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "priority")
    assert "high, normal, background, or a whole number from -8 to 8" in refused.json()["error"]["message"]


@pytest.mark.parametrize("value", [0, -1, 1e9, "5", True])
def test_a_deadline_out_of_bounds_is_a_400(front: Front, value: object) -> None:
    refused = ask(front, deadline_s=value)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "deadline_s")


def test_a_client_that_leaves_the_queue_frees_its_place(front: Front) -> None:
    for stream in (True, False):
        with busy_slot(front):
            with pytest.raises(httpx.ReadTimeout):
                front.http.post(CHAT, json=BODY | {"stream": stream}, timeout=0.3)
            wait_until(lambda: health(front, "queued") == 0, limit_s=3)
            assert health(front, "requests_running") == 1
