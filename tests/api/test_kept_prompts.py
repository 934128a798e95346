"""Kept prompts as a client sees them: `cached_tokens` is what was really used, keys and salts share nothing, health and metrics count."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.fronts import Front, end_front, start_embedded

KEYS = {"ada": "key-of-ada", "bob": "key-of-bob"}
SYSTEM = {"role": "system", "content": "You are careful. " + "Answer in short words and count what you see. " * 12}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder: Path = tmp_path_factory.mktemp("kept")
    keys = folder / "keys"
    keys.write_text("".join(f"{label}: {key}\n" for label, key in KEYS.items()))
    started = start_embedded(folder, "--context", "2048", "--state-hashes", "--api-key-file", str(keys))
    started.http.headers.update(bearer("ada"))
    started.wait_for("/health/ready", 200, limit_s=50)
    yield started
    end_front(started)


def bearer(label: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[label]}"}


def ask(front: Front, text: str, label: str = "ada", **more: Any) -> tuple[int, int, tuple[str, str]]:
    """Prompt tokens, cached tokens and the two hashes of a reply."""
    body = {"messages": [SYSTEM, {"role": "user", "content": text}], "max_tokens": 8} | more
    reply = front.http.post("/v1/chat/completions", json=body, headers=bearer(label))
    assert reply.status_code == 200, reply.text
    usage, figures = reply.json()["usage"], reply.json()["lockstep"]
    return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], (figures["token_sha"], figures["state_hash"])


def test_a_shared_system_text_is_begun_behind_and_an_equal_prompt_is_cached_whole(front: Front):
    prompt, cached, first = ask(front, "one", cache_salt="a")
    assert cached == 0
    _, cached, other = ask(front, "two three", cache_salt="a")
    assert 64 <= cached <= prompt
    assert cached % 64 == 0
    assert other != first
    assert ask(front, "one", cache_salt="a") == (prompt, prompt, first)


def test_keys_and_salts_share_nothing_and_get_the_same_reply(front: Front):
    prompt, _, bits = ask(front, "who shares?")
    assert ask(front, "who shares?") == (prompt, prompt, bits)
    assert ask(front, "who shares?", "bob") == (prompt, 0, bits)
    assert ask(front, "who shares?", cache_salt="s") == (prompt, 0, bits)
    assert ask(front, "who shares?", "bob", cache_salt="s") == (prompt, 0, bits)


def test_the_streamed_usage_reports_cached_tokens_too(front: Front):
    ask(front, "streamed")
    body = {
        "messages": [SYSTEM, {"role": "user", "content": "streamed"}],
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text = front.http.post("/v1/chat/completions", json=body, headers=bearer("ada")).text
    assert '"cached_tokens":0' not in text.replace(" ", "")[-400:]


def test_health_and_metrics_count_kept_states(front: Front):
    ask(front, "counted")
    ask(front, "counted")
    until = time.monotonic() + 20
    while not (kept := front.http.get("/health", headers=bearer("ada")).json()["kept"])["hit_tokens_total"]:
        assert time.monotonic() < until
        time.sleep(0.1)
    assert kept["bytes"] > kept["states"] * 1000
    assert 0 < kept["hit_tokens_total"] < kept["asked_tokens_total"]
    metrics = front.http.get("/metrics", headers=bearer("ada")).text
    assert "vllm:prefix_cache_hits_total" in metrics
    assert "lockstep_kept_states" in metrics
    free = front.http.get("/health", headers=bearer("ada")).json()
    assert free["pool_free_tokens"] == free["pool_tokens"], "what only kept states own can be had"


@pytest.mark.parametrize("salt", ["", 5, "x" * 1001])
def test_a_salt_that_is_none_is_refused(front: Front, salt: object):
    body = {"messages": [{"role": "user", "content": "hi"}], "cache_salt": salt}
    reply = front.http.post("/v1/chat/completions", json=body, headers=bearer("ada"))
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "cache_salt"
