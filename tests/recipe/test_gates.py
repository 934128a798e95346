"""`verify gate|gatelong|reuse|ranks` against scripted servers: an exact one passes, each way not to be exact fails and is named."""

from __future__ import annotations

import hashlib
import io
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from failure import Failure
from fixtures.scripted_chat import ScriptedChat, serving
from recipe.codes import CODES
from recipe.ui import Ui
from verify import cli as quality
from verify import gates

GRID = 64
DIGEST = "0123456789abcdef"


@dataclass
class Exact:
    """A model whose reply is a function of prompt and sampling. `flaw` names one thing it gets wrong."""

    flaw: str = ""
    seen: dict[str, list[str]] = field(default_factory=dict)
    running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def respond(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        with self.lock:
            self.running += 1
        # Long enough for requests sent at once to meet here.
        time.sleep(0.002)
        company, text = self.running, json.dumps(body["messages"])
        with self.lock:
            self.running -= 1
            known = self.seen.setdefault(body.get("cache_salt", "") if self.flaw != "salt" else "", [])
            cached = max((self._shared(text, one) for one in known), default=0)
            known.append(text)
        if self.flaw == "no reuse":
            cached = 0
        drafted = 0 if body.get("draft") is False or self.flaw == "no drafts" else 7
        wrong = {
            "drafts": drafted and body["temperature"] == 1.0 and "tools" in body,
            "company": company > 1 and drafted,
            "warm": cached > 0,
            "long": drafted and len(text) > 20_000,
        }
        text += self.flaw if self.flaw == "other build" else ""
        said = f"{text} {[body.get(name) for name in ('temperature', 'seed', 'top_k')]} {bool(wrong.get(self.flaw))}"
        figures = {"drafted_tokens": drafted} | (
            {} if self.flaw == "no hash" else {"token_sha": hashlib.sha256(said.encode()).hexdigest()[:12]}
        )
        usage = {"prompt_tokens": len(text) // 4, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": cached}}
        choice = {"message": {"role": "assistant", "content": "fine"}, "finish_reason": "stop"}
        return 200, {"choices": [choice], "usage": usage, "lockstep": figures}

    @staticmethod
    def _shared(one: str, other: str) -> int:
        same = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        return same // GRID * GRID

    def health(self) -> dict[str, Any]:
        second = "f" * 16
        facts: dict[str, Any] = {"count": 2, "settings": [DIGEST, DIGEST], "steps": [8, 8], "chosen": [DIGEST, DIGEST]}
        flaws = {"settings": {"settings": [DIGEST, second]}, "chosen": {"chosen": [DIGEST, second]}, "silent": {"chosen": []}}
        return {"ok": True} if self.flaw == "one rank" else {"ranks": facts | flaws.get(self.flaw, {})}


@pytest.fixture
def exact() -> Iterator[ScriptedChat]:
    model = Exact()
    with serving(model.respond, model.health) as server:
        yield server


def verify(server: ScriptedChat, name: str, *more: str) -> tuple[int, str]:
    out = io.StringIO()
    status = quality.run(list(more), Ui({}, out=out, err=out), server.url, name=name)
    return status, out.getvalue()


def flawed(flaw: str, name: str, *more: str, context: int = 32768) -> tuple[int, str]:
    model = Exact(flaw)
    with serving(model.respond, model.health, context) as server:
        return verify(server, name, *more)


@pytest.mark.parametrize(("name", "checks"), [("gate", 6), ("gatelong", 4), ("reuse", 4), ("ranks", 2)])
def test_an_exact_server_passes_every_check(exact: ScriptedChat, tmp_path: Path, name: str, checks: int) -> None:
    status, text = verify(exact, name, "--json", str(tmp_path / "told.json"))
    assert status == 0, text
    assert f"{name}: {checks} passed, 0 failed, 0 skipped" in text
    told = json.loads((tmp_path / "told.json").read_text())
    assert (told["suite"], told["passed"], len(told["checks"])) == (name, True, checks)
    assert all(check["asked"] for check in told["checks"])


@pytest.mark.parametrize(
    ("flaw", "name", "failed"),
    [
        ("drafts", "gate", "tool calls, drafted, all, 4 at once"),
        ("company", "gate", "all, 4 at once"),
        ("long", "gatelong", "12000 tokens, drafted, window, drafted"),
        ("warm", "reuse", "identical prompt again, next turn, shared beginning, 4 of a beginning at once"),
        ("no reuse", "reuse", "identical prompt again, next turn, shared beginning"),
        ("settings", "ranks", "settings of the ranks"),
        ("chosen", "ranks", "tokens on every rank"),
        ("silent", "ranks", "tokens on every rank"),
        ("company", "ranks", "tokens on every rank"),
    ],
)
def test_each_way_not_to_be_exact_fails_with_status_1_and_is_named(flaw: str, name: str, failed: str) -> None:
    status, text = flawed(flaw, name)
    assert status == 1
    assert text.splitlines()[-1].endswith(f"failed: {failed}"), text


def test_a_difference_names_both_hashes(exact: ScriptedChat) -> None:
    _, text = flawed("drafts", "gate", "--only", "tool_calls")
    assert "tool_calls-01 cut: found " in text
    assert ", needed " in text


def test_serial_requests_are_undrafted_cold_and_asked_once(exact: ScriptedChat) -> None:
    verify(exact, "gate")
    serial = [body for body in exact.bodies if body.get("draft") is False]
    assert len(serial) == 30
    assert len({json.dumps([body["messages"], body["temperature"]]) for body in serial}) == 30
    assert len({body["cache_salt"] for body in exact.bodies}) == len(exact.bodies) == 90
    assert {body["temperature"] for body in serial} == {0, 0.6, 1.0}
    assert all("seed" in body for body in serial if body["temperature"])


def test_a_server_without_drafts_shows_nothing_about_drafts() -> None:
    status, text = flawed("no drafts", "gate")
    assert status == 0
    assert "prose, drafted                    -        -         -  skipped: the server drafted nothing (DRAFTER)" in text
    status, text = flawed("no drafts", "gatelong")
    assert status == 1
    assert "gatelong: 0 passed, 0 failed, 4 skipped" in text


def test_a_server_without_token_hashes_fails() -> None:
    status, text = flawed("no hash", "gate", "--only", "prose")
    assert status == 1
    assert "found no lockstep.token_sha in the reply" in text


def test_a_cold_request_that_finds_kept_states_fails() -> None:
    status, text = flawed("salt", "reuse", "--only", "identical", "--lengths", "200")
    assert status == 1
    assert "cached tokens under a cache_salt of its own, needed 0" in text


def test_the_last_long_prompt_fills_the_window() -> None:
    model = Exact()
    with serving(model.respond, model.health, context=9000) as server:
        _, text = verify(server, "gatelong")
        sent = [len(json.dumps(body["messages"])) // 4 for body in server.bodies]
    assert len(sent) == 12
    assert 0.93 * 8600 < sent[-1] < 8900
    assert f"behind {sent[-1]} tokens: " in text
    assert "12000 tokens, drafted             -        -         -  skipped: the server's window has 9000 tokens" in text


def test_lengths_are_those_asked_for() -> None:
    model = Exact()
    with serving(model.respond, model.health, context=9000) as server:
        assert verify(server, "gatelong", "--lengths", "500,20000")[0] == 0
        assert len(server.bodies) == 4


def test_one_rank_is_said_with_a_status_of_its_own() -> None:
    with pytest.raises(Failure, match="the server has one rank") as caught:
        flawed("one rank", "ranks")
    assert CODES[caught.value.code].status == 18


def test_ranks_that_are_a_step_behind_are_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gates, "POLL_S", 0.01)
    model, left = Exact(), [[8, 7], [8, 7], [8, 8]]

    def late() -> dict[str, Any]:
        facts = model.health()
        facts["ranks"]["steps"] = left.pop(0) if len(left) > 1 else left[0]
        facts["ranks"]["chosen"] = [DIGEST, DIGEST if left[0] == [8, 8] else "earlier"]
        return facts

    with serving(model.respond, late) as server:
        assert verify(server, "ranks", "--only", "tokens")[0] == 0


def test_serial_replies_are_compared_with_those_of_another_run(exact: ScriptedChat, tmp_path: Path) -> None:
    path = tmp_path / "before.json"
    asked = ("--only", "counting,references", "--references", str(path))
    status, text = verify(exact, "gate", *asked)
    assert status == 0
    assert "nothing to compare with; 30 hashes are in" in text
    status, text = verify(exact, "gate", *asked)
    assert (status, "gate: 2 passed, 0 failed, 0 skipped" in text) == (0, True)
    status, text = flawed("other build", "gate", *asked)
    assert status == 1
    assert " greedy: found " in text
    assert text.splitlines()[-1].endswith("failed: serial, as before")
    path.write_text("[1]")
    with pytest.raises(Failure, match=r"before\.json"):
        verify(exact, "gate", *asked)


def test_replies_without_hashes_are_no_references(tmp_path: Path) -> None:
    flawed("no hash", "gate", "--only", "references", "--references", str(tmp_path / "before.json"))
    assert not list(tmp_path.iterdir())
