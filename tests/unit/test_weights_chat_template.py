"""The embedded checkpoint's chat template renders the published prompt layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATE = Path(__file__).parents[2] / "engine" / "checkpoints" / "chat_template.jinja"
HEAD = "[gMASK]<sop><|system|>Reasoning Effort: "
WEATHER = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": {"type": "object"}, "note": "é"}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {}, "defer_loading": True}}


def render(messages: list[dict[str, Any]], **variables: Any) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(messages=messages, **variables)


@pytest.mark.parametrize(("effort", "word"), [("low", "Low"), ("high", "High"), ("medium", "Max"), (None, "Max")])
def test_the_effort_line_comes_first_as_its_own_system_turn(effort: str | None, word: str) -> None:
    assert render([{"role": "user", "content": "hi"}], reasoning_effort=effort) == f"{HEAD}{word}<|user|>hi"


def test_nothing_given_means_max_effort_and_no_generation_prompt() -> None:
    assert render([{"role": "system", "content": "be kind"}]) == f"{HEAD}Max<|system|>be kind"


def test_the_generation_prompt_opens_the_think_block() -> None:
    assert render([{"role": "user", "content": "hi"}], add_generation_prompt=True).endswith("<|user|>hi<|assistant|><think>")


def test_tools_stand_before_the_system_message_one_json_object_a_line() -> None:
    text = render([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}], tools=[WEATHER, CLOCK])
    before, after = text.split("<tools>\n")
    listed, after = after.split("</tools>\n")
    assert before.startswith(f"{HEAD}Max<|system|># ")
    assert listed == '{"name": "weather", "parameters": {"type": "object"}, "note": "é"}\n'
    assert after.startswith("To call")
    assert after.endswith("</tool_call><|system|>S<|user|>U")


def test_deferred_tools_alone_write_no_tools_block() -> None:
    assert render([{"role": "user", "content": "U"}], tools=[CLOCK]) == f"{HEAD}Max<|user|>U"


def test_assistant_turns_keep_reasoning_and_glue_stripped_content_and_calls() -> None:
    calls = [
        {"id": "a", "function": {"name": "weather", "arguments": {"city": "Ulm\n<b>", "days": 3, "exact": True}}},
        {"function": {"name": "now"}},
    ]
    turn = {"role": "assistant", "reasoning_content": "r ", "content": "  yes \n", "tool_calls": calls}
    assert render([{"role": "user", "content": "U"}, turn]).split("U", 1)[1] == (
        "<|assistant|><think>r </think>yes<tool_call>weather<arg_key>city</arg_key><arg_value>Ulm\n<b></arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value><arg_key>exact</arg_key><arg_value>true</arg_value></tool_call>"
        "<tool_call>now</tool_call>"
    )


def test_reasoning_inside_the_content_moves_into_the_think_block() -> None:
    assert render([{"role": "assistant", "content": "<think>why</think> so"}]).endswith("<|assistant|><think>why</think>so")


def test_null_content_renders_as_nothing() -> None:
    assert render([{"role": "assistant", "content": None}]).endswith("<|assistant|><think></think>")


def test_clear_thinking_drops_reasoning_up_to_the_last_user_message_only() -> None:
    turn = {"role": "assistant", "reasoning_content": "r", "content": "A"}
    messages = [{"role": "user", "content": "1"}, turn, {"role": "user", "content": "2"}, turn]
    kept = "<|user|>1<|assistant|><think>r</think>A<|user|>2<|assistant|><think>r</think>A"
    assert render(messages).endswith(kept)
    assert render(messages, clear_thinking=True).endswith(kept.replace("1<|assistant|><think>r", "1<|assistant|><think>"))


CALLS = {"role": "assistant", "content": "", "tool_calls": [{"id": i, "function": {"name": i, "arguments": {}}} for i in "ab"]}


def results(*ids: str | None) -> list[dict[str, Any]]:
    return [{"role": "tool", "content": f"r{i}", **({"tool_call_id": i} if i else {})} for i in ids]


@pytest.mark.parametrize(
    ("ids", "order"),
    [(("b", "a"), "ab"), (("a", "b"), "ab"), (("b", None), ("b", "None")), (("b", "b"), "bb"), (("b", "x"), "bx"), (("b",), "b")],
)
def test_results_follow_the_calls_if_all_ids_match_and_the_messages_otherwise(ids: tuple[str | None, ...], order: Any) -> None:
    expected = "".join(f"<tool_response>r{i}</tool_response>" for i in order)
    assert render([CALLS, *results(*ids)]).endswith(f"<tool_call>b</tool_call><|observation|>{expected}")


def test_results_after_another_turn_get_their_own_observation() -> None:
    text = render([*results(None), {"role": "user", "content": "U"}, *results(None)])
    observation = "<|observation|><tool_response>rNone</tool_response>"
    assert text.endswith(f"{observation}<|user|>U{observation}")


def test_media_parts_render_their_placeholders_in_order() -> None:
    parts = [
        {"type": "text", "text": "see "},
        {"type": "image_url"},
        {"type": "video"},
        {"type": "input_audio"},
        {"type": "text", "text": "!"},
    ]
    assert render([{"role": "user", "content": parts}]).endswith(
        "<|user|>see <|begin_of_image|><|image|><|end_of_image|><|begin_of_video|><|video|><|end_of_video|>"
        "<|begin_of_audio|><|end_of_audio|>!"
    )


def test_a_tool_reference_prints_the_named_definition() -> None:
    message = {"role": "tool", "content": [{"type": "tool_reference", "tool_name": "clock"}]}
    assert render([message], tools=[CLOCK]).endswith(
        '<|observation|><tool_response><tools>\n{"name": "clock", "parameters": {}}\n</tools></tool_response>'
    )
