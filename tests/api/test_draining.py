"""The time between a signal to end and the end: new requests are told when to come again, running ones finish or are cut in words."""

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from fixtures.fronts import Front, events, rounds
from fixtures.waiting import wait_until

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "loop_guard": False}
ENDLESS = {"rounds": rounds(*["word "] * 2000), "delay_s": 0.01, "slots": 2, "max_queued": 2}
Serve = Callable[..., Front]


def test_a_new_client_is_told_to_come_again_while_a_running_reply_finishes(serve: Serve) -> None:
    front = serve(ENDLESS)
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(front.http.post, CHAT, json={**BODY, "max_tokens": 150}, timeout=30)
        wait_until(lambda: front.running == 1)
        front.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(f"{front.url}/health").json()["status"] == "draining")
        refused = httpx.post(f"{front.url}{CHAT}", json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
        assert int(refused.headers["retry-after"]) > 0
        assert reply.result().json()["usage"]["completion_tokens"] == 150
    assert front.process.wait(timeout=10) == 0


def test_a_reply_that_does_not_finish_in_time_is_cut_and_says_so(serve: Serve) -> None:
    front = serve(ENDLESS, "--drain-timeout", "1")
    with front.http.stream("POST", CHAT, json={**BODY, "stream": True}, timeout=30) as reply:
        parts = reply.iter_text()
        texts = [next(parts)]
        front.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        texts += parts
    assert 0.5 < time.monotonic() - began < 6
    *_, error, done = events("".join(texts))
    assert done == "[DONE]"
    assert error["error"]["message"]
    assert front.process.wait(timeout=10) == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_at_once(serve: Serve, number: signal.Signals) -> None:
    front = serve(ENDLESS)
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(front.http.post, CHAT, json={**BODY, "max_tokens": 2000}, timeout=30)
        wait_until(lambda: front.running == 1)
        front.process.send_signal(number)
        wait_until(lambda: "draining" in front.log.read_text())
        front.process.send_signal(number)
        assert front.process.wait(timeout=5) == 0
        assert reply.exception(timeout=10) is not None or reply.result().status_code != 200


def test_a_server_that_is_still_loading_ends_at_once(serve: Serve) -> None:
    front = serve({"load_s": 60}, ready=False)
    front.wait_for("/health", 200)
    began = time.monotonic()
    assert front.stop() == 0
    assert time.monotonic() - began < 5
    assert "cannot serve" not in front.log.read_text()
