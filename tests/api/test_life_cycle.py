"""Loading, overload, clients that leave, an engine that dies, keys, and the end."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from fixtures.fronts import Front, events, rounds
from fixtures.probing import health_stays_quick
from fixtures.waiting import wait_until

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hi"}], "loop_guard": False}
ENDLESS = {"rounds": rounds(*["word "] * 2000), "delay_s": 0.01, "slots": 2, "max_queued": 2}
Serve = Callable[..., Front]


def test_while_the_engine_loads_the_server_is_alive_and_not_ready(serve: Serve, tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    front = serve({"rounds": rounds("x"), "loads_until": str(loaded)}, ready=False)
    assert front.wait_for("/health", 200).json()["status"] == "loading"
    ready = front.http.get("/health/ready")
    assert (ready.status_code, ready.json()["ready"]) == (503, False)
    assert "loading" in ready.json()["reason"]
    refused = front.http.post(CHAT, json=BODY)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "loading")
    assert refused.headers["retry-after"]
    assert front.http.get("/v1/models").status_code == 200
    assert front.http.post("/tokenize", json={"prompt": "abc"}).status_code == 200
    loaded.touch()
    front.wait_for("/health/ready", 200)
    assert front.http.post(CHAT, json=BODY).status_code == 200


@pytest.mark.parametrize("status", [3, 6])
def test_an_engine_that_cannot_load_ends_the_server_with_its_status(serve: Serve, status: int) -> None:
    front = serve({"fail": "the weights are not there", "exit": status}, ready=False)
    assert front.process.wait(timeout=20) == status
    assert "the weights are not there" in front.log.read_text()


def test_a_taken_port_is_named_and_ends_the_server(serve: Serve) -> None:
    first = serve({"rounds": rounds("x")})
    second = serve({"rounds": rounds("x")}, "--port", str(first.port), ready=False)
    assert second.process.wait(timeout=20) != 0
    assert f"port {first.port}" in second.log.read_text()


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_slot(serve: Serve, stream: bool) -> None:
    front = serve(ENDLESS)
    body = b'{"messages":[{"role":"user","content":"hi"}],"stream":%s}' % (b"true" if stream else b"false")
    with socket.create_connection(("127.0.0.1", front.port)) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        if stream:
            assert b"200 OK" in connection.recv(1000)
        wait_until(lambda: front.running == 1)
    wait_until(lambda: front.running == 0, 10.0)
    metrics = front.http.get("/metrics").text
    assert "lockstep_client_disconnections_total 1.0" in metrics


def test_a_queued_request_whose_client_left_never_starts(serve: Serve) -> None:
    front = serve(ENDLESS)
    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(front.http.post, CHAT, json={**BODY, "max_tokens": 100}, timeout=30) for _ in range(2)]
        wait_until(lambda: front.running == 2)
        with pytest.raises(httpx.ReadTimeout):
            front.http.post(CHAT, json=BODY, timeout=0.2)
        wait_until(lambda: front.http.get("/health").json()["queued"] == 0)
        assert [reply.result().status_code for reply in busy] == [200, 200]
    wait_until(lambda: front.running == 0, 10.0)


@pytest.mark.parametrize("stream", [True, False])
def test_past_slots_and_queue_a_request_is_refused_before_its_stream_opens(serve: Serve, stream: bool) -> None:
    front = serve(ENDLESS, "--max-queued", "1")
    with ThreadPoolExecutor(3) as pool:
        busy = [pool.submit(front.http.post, CHAT, json={**BODY, "max_tokens": 200}, timeout=30) for _ in range(3)]
        wait_until(lambda: front.http.get("/health").json().get("queued") == 1)
        refused = front.http.post(CHAT, json={**BODY, "stream": stream})
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "queue_full"
        assert int(refused.headers["retry-after"]) > 0
        assert [reply.result().status_code for reply in busy] == [200] * 3


def test_a_dead_engine_is_named_on_every_inference_route(serve: Serve) -> None:
    front = serve(ENDLESS)
    texts: list[str] = []

    def read() -> None:
        with front.http.stream("POST", CHAT, json={**BODY, "stream": True}, timeout=30) as reply:
            texts.extend(reply.iter_text())

    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(front.http.post, CHAT, json=BODY, timeout=30)
        reader = threading.Thread(target=read)
        reader.start()
        wait_until(lambda: front.running == 2)
        os.kill(front.engine_pid, signal.SIGKILL)
        reader.join(timeout=10)
        assert whole.result(timeout=10).status_code == 503
    *_, error, done = events("".join(texts))
    assert done == "[DONE]"
    assert "SIGKILL" in error["error"]["message"]
    assert '"finish_reason":"' not in "".join(texts)
    for path, body in ((CHAT, BODY), ("/v1/completions", {"prompt": "x"}), (CHAT, {**BODY, "stream": True})):
        reply = front.http.post(path, json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_dead")
        assert "SIGKILL" in reply.json()["error"]["message"]
    health = front.http.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "dead")
    assert "SIGKILL" in health.json()["cause"]
    assert front.http.get("/health/ready").status_code == 503
    assert front.http.get("/metrics").status_code == 200
    assert front.stop() == 0


def test_an_engine_that_dies_right_behind_its_load_is_named_by_a_server_that_stays(serve: Serve) -> None:
    front = serve({"rounds": rounds("x")})
    os.kill(front.engine_pid, signal.SIGKILL)
    front.wait_for("/health", 503)
    # The front is done with what it prepares while an engine loads; then it knows whether it can serve.
    wait_until(lambda: "ready: context" in front.log.read_text())
    assert "SIGKILL" in front.http.get("/health").json()["cause"]
    assert front.stop() == 0


def test_a_stop_signal_lets_a_running_reply_finish(serve: Serve) -> None:
    front = serve(ENDLESS)
    with ThreadPoolExecutor(1) as pool:
        reply = pool.submit(front.http.post, CHAT, json={**BODY, "max_tokens": 60}, timeout=30)
        wait_until(lambda: front.running == 1)
        assert front.stop() == 0
        assert reply.result().json()["usage"]["completion_tokens"] == 60
    with pytest.raises(httpx.ConnectError):
        front.http.get("/health")


def test_health_answers_while_a_long_prompt_is_cut_into_tokens(serve: Serve) -> None:
    front = serve({"rounds": rounds("x")})

    def cut() -> None:
        assert front.http.post("/tokenize", json={"prompt": "hello world <x> 12 é " * 50_000}, timeout=50).json()["count"] > 500_000

    health_stays_quick(front, cut)
