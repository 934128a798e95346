"""`verify quality` against scripted servers: a perfect one passes, a scrambled one fails with exit status 1 and named checks."""

from __future__ import annotations

import io
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from failure import Failure
from fixtures.scripted_chat import ScriptedChat, serving
from recipe.ui import Ui
from verify import cli as quality
from verify import haystack, suite
from verify.client import Server, parse_url, probe

TEXT_SETS = ("exact_word", "counting", "tool_calls", "json_instruction", "efforts", "end_of_turn", "bursts", "images", "shapes")
EXPECTED = {json.dumps(case["messages"]): case["expect"] for name in TEXT_SETS for case in suite.bundled(name)}


def perfect(body: dict[str, Any]) -> dict[str, Any]:
    """The message a faultless model gives; needle codes are read from the prompt."""
    expect = EXPECTED.get(json.dumps(body["messages"]))
    if expect is None:
        found = re.findall(r"The secret code of (\w+) is (\d+)\.", body["messages"][-1]["content"])
        return {"content": " ".join(code for _, code in found)}
    kind = expect["kind"]
    if kind in ("calls", "any_call"):
        calls = expect.get("calls") or [{"name": expect["name"], "arguments": {expect["argument"]: "owls"}}]
        return {"tool_calls": [{"function": {"name": c["name"], "arguments": json.dumps(c["arguments"])}} for c in calls]}
    if kind == "integers":
        return {"content": ", ".join(str(n) for n in range(expect["first"], expect["last"] + 1))}
    if kind == "word":
        length = {"low": 1, "high": 2, "max": 3}.get(body.get("reasoning_effort", ""), 0)
        return {"content": expect["words"][0], "reasoning_content": "thinking " * length}
    value = expect["value"] if "value" in expect else " ".join(expect.get("texts", ["fine"]))
    return {"content": value if isinstance(value, str) else json.dumps(value)}


def scrambled(body: dict[str, Any]) -> dict[str, Any]:
    return {"content": "zzzzzzzz" * 4, "reasoning_content": ""}


def serve(answer: Any, vision: bool = True, context: int = 32768, takes_format: bool = True) -> Iterator[ScriptedChat]:
    def respond(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if "response_format" in body and not takes_format:
            return 400, {"error": {"message": "response_format is not supported"}}
        message = {"role": "assistant", **answer(body)}
        finish = "tool_calls" if message.get("tool_calls") else "length" if "zzz" in message.get("content", "") else "stop"
        return 200, {"choices": [{"message": message, "finish_reason": finish}], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}

    with serving(respond, lambda: {"ok": True, "vision": vision}, context) as server:
        yield server


@pytest.fixture
def faultless() -> Iterator[ScriptedChat]:
    yield from serve(perfect)


@pytest.fixture
def broken() -> Iterator[ScriptedChat]:
    yield from serve(scrambled)


@pytest.fixture
def plain_server() -> Iterator[ScriptedChat]:
    yield from serve(perfect, vision=False, context=5000, takes_format=False)


def verify(server: ScriptedChat, *more: str, key: str = "") -> tuple[int, str]:
    out = io.StringIO()
    status = quality.run(list(more), Ui({}, out=out, err=out), server.url, key)
    return status, out.getvalue()


def test_a_faultless_server_passes_every_check(faultless: ScriptedChat, tmp_path: Path) -> None:
    status, text = verify(faultless, "--json", str(tmp_path / "quality.json"))
    assert status == 0
    assert "quality: 12 passed, 0 failed, 0 skipped" in text
    written = json.loads((tmp_path / "quality.json").read_text())
    assert written["passed"]
    assert [(c["right"], c["asked"]) for c in written["checks"][:4]] == [(20, 20), (20, 20), (40, 40), (20, 20)]


def test_a_scrambled_server_fails_with_exit_status_1_and_names_every_check(broken: ScriptedChat) -> None:
    status, text = verify(broken)
    assert status == 1
    assert text.count("FAIL") == 11  # thinking off leaks nothing even from a scrambled model
    assert "failed: exact word, counting, tool calls, JSON by instruction, JSON by response_format, needles" in text
    assert "needed exactly" in text


def test_what_a_server_does_not_offer_is_skipped_and_said(plain_server: ScriptedChat) -> None:
    status, text = verify(plain_server)
    assert status == 0
    assert "images                            -        -         -  skipped: the server does not say that it takes images" in text
    assert "JSON by response_format           -        -         -  skipped: the server does not take response_format" in text
    assert "9 passed, 0 failed, 3 skipped" in text
    assert not any(isinstance(m["content"], list) for body in plain_server.bodies for m in body["messages"])


def test_needle_lengths_beyond_the_window_are_left_out(plain_server: ScriptedChat) -> None:
    _, text = verify(plain_server, "--only", "needles")
    assert "2/2" in text


def test_requests_are_greedy_and_switch_thinking_off_except_where_effort_is_asked(faultless: ScriptedChat) -> None:
    verify(faultless, "--only", "exact_word,efforts")
    assert all(body["temperature"] == 0 for body in faultless.bodies)
    thinking = [body["chat_template_kwargs"]["enable_thinking"] for body in faultless.bodies]
    assert thinking == [False] * 20 + [True] * 12
    assert [body["reasoning_effort"] for body in faultless.bodies[20:23]] == ["low", "high", "max"]


def test_reasoning_that_does_not_grow_fails_the_effort_check() -> None:
    def flat(body: dict[str, Any]) -> dict[str, Any]:
        return {**perfect(body), "reasoning_content": "always the same"}

    for server in serve(flat):
        status, text = verify(server, "--only", "efforts")
        assert status == 1
        assert "needed low < high < max" in text


def test_bursts_are_sent_three_at_a_time() -> None:
    barrier = threading.Barrier(3, timeout=20)

    def together(body: dict[str, Any]) -> dict[str, Any]:
        barrier.wait()
        return perfect(body)

    for server in serve(together):
        status, text = verify(server, "--only", "bursts")
        assert status == 0
        assert "90/90" in text


def test_the_own_key_goes_to_the_own_server_only(faultless: ScriptedChat) -> None:
    verify(faultless, "--only", "exact_word", key="mine")
    assert faultless.keys == {"Bearer mine"}
    faultless.keys.clear()
    verify(faultless, "--only", "exact_word", "--base-url", faultless.url + "/v1", key="mine")
    assert faultless.keys == {None}


@pytest.mark.parametrize("base", ["ftp://127.0.0.1", "127.0.0.1:8022", "http://", "http://127.0.0.1:99999", "http://a@127.0.0.1"])
def test_a_base_url_that_is_none_is_refused(base: str) -> None:
    with pytest.raises(Failure, match="--base-url"):
        parse_url(base, "")


def test_a_server_that_does_not_answer_is_a_coded_failure() -> None:
    with pytest.raises(Failure) as caught:
        probe(Server("127.0.0.1", 9, "", False, ""))
    assert caught.value.code == "E_API"


def test_a_server_that_still_loads_is_asked_nothing() -> None:
    with serving(lambda body: (503, {}), lambda: {"status": "loading"}, 4096) as server, pytest.raises(Failure, match="loading"):
        probe(parse_url(server.url, ""))


@pytest.mark.parametrize("arguments", [["--only", "vibes"], ["--needle-tokens", "many"], ["--unknown"]])
def test_wrong_arguments_are_refused_before_anything_is_asked(faultless: ScriptedChat, arguments: list[str]) -> None:
    with pytest.raises(Failure) as caught:
        verify(faultless, *arguments)
    assert caught.value.code == "E_CONFIG"
    assert faultless.bodies == []


def test_a_haystack_holds_its_codes_at_the_three_depths() -> None:
    case = haystack.build(suite.bundled("needles"), 4000)
    text = case["messages"][0]["content"]
    depths = [text.index(code) / len(text) for code in case["expect"]["texts"]]
    assert depths == pytest.approx(list(haystack.DEPTHS), abs=0.03)
    assert case == haystack.build(suite.bundled("needles"), 4000)


def test_every_bundled_case_has_its_own_question_within_a_set() -> None:
    for name in TEXT_SETS:
        if name == "bursts":
            continue
        cases = [json.dumps(case["messages"]) for case in suite.bundled(name)]
        assert len(set(cases)) == len(cases)


def test_without_a_running_server_a_base_url_is_asked_for() -> None:
    with pytest.raises(Failure, match="no server of this installation runs"):
        quality.run([], Ui({}))
