"""From generated ids back to what a server would answer, for quick evaluation during training. Knows no HTTP and no model."""

from __future__ import annotations

import json
from typing import Any

from embedded.make.data.encoding import Encoder
from embedded.make.data.fixtures import Case

from verify.judge import Reply, judge

STOPS = ("<|endoftext|>", "<|user|>", "<|observation|>")


def parse_reply(encoder: Encoder, case: Case, ids: list[int]) -> Reply:
    """`ids` begin right after the prompt and end with the stop token if there was one. Types of arguments follow the tool schemas."""
    stops = {encoder.special(token) for token in STOPS}
    ended = bool(ids) and ids[-1] in stops
    text = encoder.tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=False)
    reasoning = ""
    if case.asked.effort is not None:
        reasoning, _, text = text.partition("</think>")
    content, *calls = text.split("<tool_call>")
    types = {tool["name"]: tool["parameters"]["properties"] for tool in case.asked.tools}
    return Reply(content, reasoning, tuple(_call(part, types) for part in calls), "stop" if ended else "length", completion_tokens=len(ids))


def _call(text: str, types: dict[str, dict[str, Any]]) -> tuple[str, Any]:
    name, *pairs = text.split("</tool_call>")[0].split("<arg_key>")
    arguments: dict[str, Any] = {}
    for pair in pairs:
        key, _, rest = pair.partition("</arg_key>")
        value = rest.removeprefix("<arg_value>").removesuffix("</arg_value>")
        arguments[key] = value if types.get(name, {}).get(key, {}).get("type") == "string" else _typed(value)
    return name, arguments


def _typed(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


def verdict(encoder: Encoder, case: Case, ids: list[int]) -> str:
    """Empty if the generated ids answer the case, else what was found and needed."""
    return judge(case.expect, parse_reply(encoder, case, ids))
