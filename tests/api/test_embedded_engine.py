"""The shipped command with the embedded checkpoint: a real engine process behind the API."""

from __future__ import annotations

import os
import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from fixtures.fronts import Front, end_front, events, start_embedded
from fixtures.waiting import wait_until

BODY = {"messages": [{"role": "user", "content": "Count to five."}], "max_tokens": 16}


def test_the_openai_client_reads_the_same_reply_whole_and_streamed(embedded: Front) -> None:
    client = openai.OpenAI(base_url=embedded.url + "/v1", api_key="none", max_retries=0)
    whole = client.chat.completions.create(model="glm-5.3-flash", messages=[{"role": "user", "content": "hi"}], max_tokens=16)
    stream = client.chat.completions.create(model="glm-5.3-flash", messages=[{"role": "user", "content": "hi"}], max_tokens=16, stream=True)
    assert whole.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole.choices[0].message.content
    assert client.completions.create(model="glm-5.3-flash", prompt="one two", max_tokens=4).usage


def test_sixteen_clients_at_once_get_the_reply_each_would_get_alone(embedded: Front) -> None:
    def ask(number: int) -> tuple[str, str]:
        body = BODY | {"messages": [{"role": "user", "content": f"Say {number % 4}."}]}
        reply = embedded.http.post("/v1/chat/completions", json=body).json()
        return reply["lockstep"]["token_sha"], reply["lockstep"]["state_hash"]

    alone = [ask(number) for number in range(4)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == alone * 4


def test_streamed_and_whole_have_the_same_tokens_with_thinking_and_a_stop(embedded: Front) -> None:
    for more in ({"reasoning_effort": "low"}, {"stop": ["e"]}, {"temperature": 0}):
        whole = embedded.http.post("/v1/chat/completions", json=BODY | more).json()
        chunks = events(embedded.http.post("/v1/chat/completions", json=BODY | more | {"stream": True}).text)[:-1]
        assert chunks[-1]["lockstep"]["token_sha"] == whole["lockstep"]["token_sha"]
        message = whole["choices"][0]["message"]
        for name in ("reasoning_content", "content"):
            assert "".join(chunk["choices"][0]["delta"].get(name, "") for chunk in chunks) == message.get(name, "")


def test_a_reply_cut_at_a_stop_string_has_a_hash_of_its_tokens_and_none_of_a_state_beyond_them(embedded: Front) -> None:
    body = {"messages": [{"role": "user", "content": "count from 1 to 20"}], "temperature": 0, "max_tokens": 48}
    whole = embedded.http.post("/v1/chat/completions", json=body).json()
    stop = whole["choices"][0]["message"]["content"][4:6]
    cut = [embedded.http.post("/v1/chat/completions", json=body | {"stop": stop, "draft": draft}).json() for draft in (True, False)]
    assert {reply["lockstep"]["token_sha"] for reply in cut} != {whole["lockstep"]["token_sha"]}
    assert len({reply["lockstep"]["token_sha"] for reply in cut}) == 1
    assert "state_hash" in whole["lockstep"]
    assert all("state_hash" not in reply["lockstep"] for reply in cut)


def test_a_client_killed_in_mid_stream_frees_its_slot(embedded: Front) -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}],"stream":true,"ignore_eos":true,"max_tokens":900}'
    with socket.create_connection(("127.0.0.1", embedded.port)) as connection:
        connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        assert b"200 OK" in connection.recv(1000)
        wait_until(lambda: embedded.running == 1)
    # Its 900 tokens take longer.
    wait_until(lambda: embedded.running == 0, 3.0)


def test_a_pool_that_does_not_fit_this_machine_ends_the_start_with_what_would(tmp_path_factory: pytest.TempPathFactory) -> None:
    front = start_embedded(tmp_path_factory.mktemp("large"), "--context", "1024", "--pool-tokens", str(1 << 30))
    try:
        assert front.process.wait(timeout=50) == 4
        told = front.log.read_text()
        assert re.search(r"\(window_too_large\): .*--pool-tokens 1073741824 needs \d{3}.*; the largest that fits is \d+\n", told)
    finally:
        end_front(front)


def test_a_killed_engine_is_named_and_the_front_stays(tmp_path_factory: pytest.TempPathFactory) -> None:
    front = start_embedded(tmp_path_factory.mktemp("killed"), "--context", "1024")
    try:
        front.wait_for("/health/ready", 200, limit_s=50)
        os.kill(front.engine_pid, signal.SIGKILL)
        assert "SIGKILL" in front.wait_for("/health", 503).json()["cause"]
        assert front.http.post("/v1/chat/completions", json=BODY).status_code == 503
        assert front.stop() == 0
    finally:
        end_front(front)


def test_the_grammar_library_is_loaded_before_the_first_grammar_would_hold_up_a_step_for_it(embedded: Front) -> None:
    """Nobody in this module asks for a grammar."""
    wait_until(lambda: "libxgrammar" in Path(f"/proc/{embedded.engine_pid}/maps").read_text())
