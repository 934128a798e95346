"""Fields of other servers that change a reply and that this server does not serve yet. Refused by name, never ignored.

One table: the values that change nothing, and what a client should do instead. A field that is served leaves the table."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from lockstep.server.errors import refuse

_LEAVE_OUT, _CHAT = "leave it out", "send it to /v1/chat/completions"

UNSUPPORTED: dict[str, tuple[tuple[Any, ...], str]] = {
    "best_of": ((1,), _LEAVE_OUT),
    "prompt_logprobs": ((0,), _LEAVE_OUT),
    "tools": (([],), _CHAT),
    "tool_choice": (("none", "auto"), _CHAT),
    "functions": (([],), "send `tools` to /v1/chat/completions"),
    "function_call": (("none", "auto"), "send `tool_choice` to /v1/chat/completions"),
    "chat_template": ((), "leave it out; only the checkpoint's own template is rendered"),
    "continue_final_message": ((False,), _CHAT),
    "echo": ((False,), "send it to /v1/completions"),
    "top_logprobs": ((0,), "send `logprobs` with a number to /v1/completions"),
    "add_generation_prompt": ((True,), _LEAVE_OUT),
    "modalities": ((["text"],), 'leave it out or send ["text"]'),
    "typical_p": ((1, 1.0), _LEAVE_OUT),
    **dict.fromkeys(("thinking_budget", "thinking_token_budget", "reasoning_budget"), ((-1,), _CHAT)),
    **dict.fromkeys(("suffix", "response_prefix", "prefix"), (("",), _LEAVE_OUT)),
    **dict.fromkeys(("audio", "prediction", "web_search_options", "prompt_embeds"), ((), _LEAVE_OUT)),
    **dict.fromkeys(("mirostat", "xtc_probability", "dry_multiplier", "dynatemp_range", "smoothing_factor"), ((0, 0.0), _LEAVE_OUT)),
    **dict.fromkeys(("bad_words", "allowed_token_ids", "documents", "logits_processors"), (([],), _LEAVE_OUT)),
    **dict.fromkeys(("use_beam_search", "include_stop_str_in_output"), ((False,), _LEAVE_OUT)),
    **dict.fromkeys(("length_penalty", "tfs", "tfs_z"), ((1, 1.0), _LEAVE_OUT)),
    "repeat_penalty": ((1, 1.0), "send `repetition_penalty`"),
    "truncate_prompt_tokens": ((), "send fewer"),
    **dict.fromkeys(
        ("json_schema", "regex", "ebnf", "grammar", "regex_pattern", "grammar_string"), ((), "send it in `structured_outputs`")
    ),
}


def refuse_unsupported(extra: dict[str, Any]) -> None:
    """Raise a validation fault for the first field that is not served and not neutral. Null is always neutral."""
    for name, value in extra.items():
        if name not in UNSUPPORTED or value is None:
            continue
        neutral, instead = UNSUPPORTED[name]
        if not any(type(value) is type(item) and value == item for item in neutral):
            raise PydanticCustomError("unsupported", "{instead}", {"instead": instead, "field": name})


def refuse_values(extra: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Raise ApiError 400 for the first field of `neutral` that has a value other than null and its neutral ones."""
    for name, values in neutral.items():
        if extra.get(name) is not None and extra[name] not in values:
            refuse(name, "is not served; leave it out")
