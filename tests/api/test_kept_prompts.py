"""Kept prompts as a client sees them: `cached_tokens` is what was really used, keys and salts share nothing, health and metrics count."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.fronts import Front, end_front, events, start_embedded

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


def test_logarithms_of_a_prompt_are_told_once_however_states_cut_it(front: Front):
    ids = [2 + (7 * at + at * at // 5) % 2000 for at in range(700)]

    def told(length: int) -> list[float | None]:
        body = {"prompt": ids[:length], "echo": True, "logprobs": 0, "max_tokens": 1}
        reply = front.http.post("/v1/completions", json=body, headers=bearer("ada"))
        assert reply.status_code == 200, reply.text
        assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        return reply.json()["choices"][0]["logprobs"]["token_logprobs"]

    longest = told(700)
    assert longest[0] is None
    for length in (64, 65, 129, 300, 700):
        found = told(length)
        assert len(found) == length + 1
        assert found[:length] == longest[:length]


def test_keys_and_salts_share_nothing_and_get_the_same_reply(front: Front):
    prompt, _, bits = ask(front, "who shares?")
    assert ask(front, "who shares?") == (prompt, prompt, bits)
    assert ask(front, "who shares?", "bob") == (prompt, 0, bits)
    assert ask(front, "who shares?", cache_salt="s") == (prompt, 0, bits)
    assert ask(front, "who shares?", "bob", cache_salt="s") == (prompt, 0, bits)


ROUNDS, FLIPS = 16, 4000


def first_token_s(front: Front, text: str, label: str, **more: Any) -> float:
    """Seconds until a client sees the first byte of a streamed reply, of which no token may come out of a kept state it has no right to."""
    options = {"include_usage": True}
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "stream": True, "stream_options": options} | more
    began = time.perf_counter()
    with front.http.stream("POST", "/v1/chat/completions", json=body, headers=bearer(label)) as reply:
        pieces = reply.iter_text()
        first = next(pieces)
        taken = time.perf_counter() - began
        usage = [chunk["usage"] for chunk in events(first + "".join(pieces))[:-1] if chunk.get("usage")]
    cached = usage[0]["prompt_tokens_details"]["cached_tokens"]
    assert bool(cached) == (label == "ada" and not more), cached
    return taken


def chance_of(differences: list[float]) -> float:
    """How often pairs that differ by chance alone, either way round, differ by as much together: a permutation test on signed ranks, which
    no single slow answer decides."""
    order = sorted(range(len(differences)), key=lambda at: abs(differences[at]))
    ranks = [0.0] * len(differences)
    for rank, at in enumerate(order, 1):
        ranks[at] = rank if differences[at] > 0 else -rank
    flip = random.Random(7)
    others = (abs(sum(flip.choice((-1, 1)) * rank for rank in ranks)) for _ in range(FLIPS))
    return sum(other >= abs(sum(ranks)) for other in others) / FLIPS


def test_how_long_a_first_token_takes_does_not_tell_what_other_keys_and_salts_sent(front: Front) -> None:
    """Each round: one key sends a prompt; then come, shuffled, another key and another salt with that prompt, and a prompt nobody sent.
    That the own key is told from the last one shows that the test would find a difference."""
    mix = random.Random(3)
    for last in (False, True):
        gains: dict[str, list[float]] = {"another key": [], "another salt": [], "the same key": []}
        for number in range(ROUNDS):
            seen, unseen = (f"{mix.random()} {which} " + "count the rivers and say what you see. " * 24 for which in ("seen", "none"))
            front.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": seen}], "max_tokens": 1})
            asks: list[tuple[str, str, str, dict[str, Any]]] = [
                ("another key", seen, "bob", {}), ("another salt", seen, "ada", {"cache_salt": str(number)}), ("", unseen, "bob", {}),
            ]  # fmt: skip
            mix.shuffle(asks)
            asks.append(("the same key", seen, "ada", {}))
            taken = {name: first_token_s(front, text, label, **more) for name, text, label, more in asks}
            for name, differences in gains.items():
                differences.append(taken[""] - taken[name])
        chances = {name: chance_of(differences) for name, differences in gains.items()}
        assert chances.pop("the same key") < 0.001
        shown = {name: abs(statistics.median(gains[name])) / statistics.median(gains["the same key"]) for name in chances}
        if min(chances.values()) > 0.01 and max(shown.values()) < 0.1:
            break
        # One in fifty such tests finds a difference where there is none; twice is no chance.
        assert not last, (chances, shown)


def test_the_streamed_usage_reports_cached_tokens_too(front: Front):
    ask(front, "streamed")
    body = {
        "messages": [SYSTEM, {"role": "user", "content": "streamed"}],
        "max_tokens": 8,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    *_, last, _ = events(front.http.post("/v1/chat/completions", json=body, headers=bearer("ada")).text)
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] == last["usage"]["prompt_tokens"]


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
