"""Request bodies as the API takes them. Knows bounds and shapes; what a field does is decided elsewhere.

Strict types: no numeric strings, no truthy strings, no bool as number. Null stands for the default. Unknown fields are ignored,
except those that `unsupported` lists."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StringConstraints, model_validator

from lockstep.core.types import PRIORITIES, PRIORITY_TOKENS
from lockstep.server.outputform import Choice, ResponseFormat, Schema, StructuredOutputs, Text
from lockstep.server.toolform import ToolChoice, ToolList
from lockstep.server.turns import Messages, fault
from lockstep.server.unsupported import UNSUPPORTED, refuse_unsupported

INT64 = 1 << 63
LONGEST_DEADLINE_S = 86400.0
PRIORITY_WORDS = {"high": PRIORITIES[0] // 2, "normal": 0, "background": PRIORITIES[-1] // 2}
MAX_TOKEN_ID = (1 << 31) - 1
MAX_CHOICES, MAX_PROMPTS = 16, 1024
MAX_ALTERNATIVES, MAX_BIASES = 20, 1024
# Fields that some other form of a request has, which may be sent with any: each is read, refused or passed on.
HEARD = set(UNSUPPORTED)

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
TokenId = Annotated[int, Field(ge=0, le=MAX_TOKEN_ID)]
StopString = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


def _stop_list(value: Any) -> Any:
    stops = [value] if isinstance(value, str) else value
    if stops is not None and (not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops)):
        raise fault("a string or a list of strings, none of them empty")
    return stops


def _biases(value: Any) -> Any:
    if value is not None and (not isinstance(value, dict) or len(value) > MAX_BIASES or not all(map(_is_bias, value.items()))):
        raise fault(f"an object of at most {MAX_BIASES} numbers from -100 to 100 by token id")
    return value


def _is_bias(entry: tuple[Any, Any]) -> bool:
    token, value = entry
    return token.isascii() and token.isdecimal() and len(token) < 10 and type(value) in (int, float) and -100 <= value <= 100


def _priority(value: Any) -> Any:
    number = PRIORITY_WORDS.get(value, value) if isinstance(value, str) else value
    if value is not None and (type(number) is not int or number not in PRIORITIES):
        raise fault(f"{', '.join(PRIORITY_WORDS)}, or a whole number from {PRIORITIES[0]} to {PRIORITIES[-1]}")
    return number


def _thinking_switch(value: Any) -> Any:
    """`true`, `false`, or `{"type": "enabled" | "disabled"}`."""
    if isinstance(value, dict):
        value = {"enabled": True, "disabled": False}.get(str(value.get("type")), "unknown")
    if value is not None and not isinstance(value, bool):
        raise fault('true, false, {"type": "enabled"} or {"type": "disabled"}')
    return value


Priority = Annotated[int | None, BeforeValidator(_priority, json_schema_input_type=int | Literal["high", "normal", "background"] | None)]
PRIORITY_NOTE = (
    f"Lower goes first when requests wait, {PRIORITIES[0]} to {PRIORITIES[-1]}; the words mean {list(PRIORITY_WORDS.values())}. "
    f"A step is worth {PRIORITY_TOKENS} tokens of work of each key, so nobody waits for ever."
)
ThinkingSwitch = Annotated[bool | None, BeforeValidator(_thinking_switch, json_schema_input_type=bool | dict[str, Any] | None)]


Penalty = Annotated[float | None, Field(ge=-2, le=2, allow_inf_nan=False)]


class Body(BaseModel):
    """Base of all request bodies."""

    model_config = ConfigDict(strict=True, extra="allow", hide_input_in_errors=True)

    @model_validator(mode="after")
    def _forget_what_nobody_reads(self) -> Body:
        extra = self.model_extra or {}
        for name in [name for name in extra if name not in HEARD]:
            del extra[name]
        return self


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    include_usage: StrictBool | None = None
    continuous_usage_stats: StrictBool | None = None


class TemplateOptions(BaseModel):
    """What a request may tell the chat template."""

    model_config = ConfigDict(strict=True, extra="forbid")
    enable_thinking: ThinkingSwitch = None
    thinking: ThinkingSwitch = None
    reasoning_effort: Effort | None = None
    clear_thinking: StrictBool | None = None


class GenerationBody(Body):
    """What chat and completions have in common."""

    model: str | None = Field(None, description="Absent: the served model.")
    max_tokens: int | None = Field(
        None, ge=0, le=MAX_TOKEN_ID, description="Reply tokens. Absent, null or 0: the server's default, cut to the room left."
    )
    max_completion_tokens: int | None = Field(None, ge=0, le=MAX_TOKEN_ID, description="Wins over max_tokens.")
    temperature: float | None = Field(None, ge=0, le=100, allow_inf_nan=False, description="0 is greedy. Absent: the checkpoint's default.")
    top_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=-1, le=MAX_TOKEN_ID, description="Absent: 20. 0 and -1 switch the cut off.")
    min_p: float | None = Field(None, ge=0, le=1, allow_inf_nan=False, description="Applied after top_k and top_p.")
    seed: int | None = Field(
        None, ge=-INT64, lt=INT64, description="Absent: derived from the prompt, so that a repeated request repeats its reply."
    )
    stop: Annotated[list[StopString] | None, BeforeValidator(_stop_list, json_schema_input_type=StopString | list[StopString] | None)] = (
        Field(None, max_length=16, description="Matched in visible text only, never in reasoning.")
    )
    stop_token_ids: list[TokenId] | None = Field(None, max_length=64)
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    presence_penalty: Penalty = Field(None, description="Taken off the logit of every token the reply has.")
    frequency_penalty: Penalty = Field(None, description="Taken off once for each time the reply has the token.")
    repetition_penalty: float | None = Field(
        None, ge=0.01, le=100, allow_inf_nan=False, description="Divides positive logits of tokens of prompt and reply, multiplies others."
    )
    logit_bias: Annotated[dict[str, float] | None, BeforeValidator(_biases, json_schema_input_type=dict[str, float] | None)] = Field(
        None, description="Added to logits, by token id, before temperature and cuts."
    )
    ignore_eos: StrictBool | None = None
    min_tokens: int | None = Field(None, ge=0, le=MAX_TOKEN_ID, description="So many tokens come before one that ends the reply may.")
    loop_guard: StrictBool | None = Field(None, description="false lets a reply repeat itself up to max_tokens.")
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Choices. All but the first have seeds derived from `seed`.")
    draft: StrictBool | None = Field(None, description="false decodes without drafting: same tokens, one a round.")
    cache_salt: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = Field(
        None, description="Prompt states are shared only with requests of the same key and salt."
    )
    priority: Priority = Field(None, description=PRIORITY_NOTE)
    deadline_s: float | None = Field(
        None,
        gt=0,
        le=LONGEST_DEADLINE_S,
        allow_inf_nan=False,
        description="Seconds from arrival. Then a reply that has begun ends with `length`; one that has not is a 504.",
    )
    return_token_ids: StrictBool | None = Field(None, description="Adds the ids of prompt and reply, in `lockstep` and as vLLM has them.")
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: Text | None = None
    guided_choice: Choice | None = None
    guided_grammar: Text | None = None

    @model_validator(mode="after")
    def _refuse_what_is_not_served(self) -> GenerationBody:
        refuse_unsupported(self.model_extra or {})
        return self

    @property
    def reply_tokens(self) -> int | None:
        """Tokens of the reply as asked for."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def alternatives(self) -> int:
        """Alternatives told of each token of the reply, -1 for no logarithms at all."""
        return -1

    @property
    def prompt_alternatives(self) -> int:
        """Alternatives told of each token of the prompt, -1 for no logarithms at all."""
        return -1

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        return bool(self.include_usage and self.stream_options and self.stream_options.continuous_usage_stats)


_ELSEWHERE = (
    ("thinking_budget", "thinking", "budget_tokens"), ("thinking_budget", "reasoning", "max_tokens"),
    ("reasoning_effort", "reasoning", "effort"), ("enable_thinking", "reasoning", "enabled"),
)  # fmt: skip


class ThinkingBody(Body):
    """What decides about thinking. The plain switches win over efforts, the top level over `chat_template_kwargs`."""

    reasoning_effort: Effort | None = None
    thinking: ThinkingSwitch = None
    enable_thinking: ThinkingSwitch = None
    chat_template_kwargs: TemplateOptions | None = None
    thinking_budget: int | None = Field(None, ge=-1, le=MAX_TOKEN_ID, description="Tokens of thought before it is closed. -1: no bound.")
    thinking_token_budget: int | None = Field(None, ge=-1, le=MAX_TOKEN_ID, description="The same.")
    reasoning_budget: int | None = Field(None, ge=-1, le=MAX_TOKEN_ID, description="The same.")

    @model_validator(mode="before")
    @classmethod
    def _read_what_stands_in_objects(cls, value: dict[str, Any]) -> dict[str, Any]:
        """`thinking.budget_tokens`, and what `reasoning` holds, where others have them; a plain field wins."""
        found = {}
        for name, holder, word in _ELSEWHERE:
            told = value.get(holder)
            if isinstance(told, dict) and value.get(name) is None and told.get(word) is not None:
                found[name] = told[word]
        return value | found

    @property
    def budget(self) -> int | None:
        """Tokens of thought at most, None without a bound."""
        named = (self.thinking_budget, self.thinking_token_budget, self.reasoning_budget)
        told = next((budget for budget in named if budget is not None), -1)
        return None if told < 0 else told

    @property
    def thinking_switch(self) -> bool | None:
        holders = (self, self.chat_template_kwargs) if self.chat_template_kwargs else (self,)
        switches = (switch for holder in holders for switch in (holder.enable_thinking, holder.thinking))
        return next((switch for switch in switches if switch is not None), None)

    @property
    def effort(self) -> str | None:
        return self.reasoning_effort or (self.chat_template_kwargs.reasoning_effort if self.chat_template_kwargs else None)

    @property
    def clear_thinking(self) -> bool | None:
        return self.chat_template_kwargs.clear_thinking if self.chat_template_kwargs else None


class ToolsBody(Body):
    """What decides about tools."""

    tools: ToolList = None
    tool_choice: ToolChoice = None
    parallel_tool_calls: StrictBool | None = Field(None, description="false ends the reply behind its first call.")

    @property
    def offered_tools(self) -> list[dict[str, Any]]:
        """Tools the prompt shows and the reply may call."""
        names = self.tool_choice.get("names") if isinstance(self.tool_choice, dict) else None
        tools = [] if self.tool_choice == "none" else self.tools or []
        return tools if names is None else [tool for tool in tools if tool["function"]["name"] in names]

    @property
    def forced_tool(self) -> str | None:
        """Name of the tool that the reply has to call, nothing for any of them; None if it need not call."""
        choice = self.tool_choice
        if isinstance(choice, dict) and "name" in choice:
            return choice["name"]
        return "" if (choice["mode"] if isinstance(choice, dict) else choice) == "required" else None


class ChatBody(GenerationBody, ThinkingBody, ToolsBody):
    """`POST /v1/chat/completions`."""

    messages: Messages
    logprobs: StrictBool | None = Field(None, description="Logarithms of the probabilities of all tokens of the reply, thoughts too.")
    top_logprobs: int | None = Field(None, ge=0, le=MAX_ALTERNATIVES, description="Likeliest tokens beside each, with `logprobs`.")
    continue_final_message: StrictBool | None = Field(None, description="The reply goes on with the last message, the assistant's.")

    @property
    def alternatives(self) -> int:
        return (self.top_logprobs or 0) if self.logprobs else -1

    @model_validator(mode="after")
    def _what_needs_another(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise fault("`logprobs` true beside `top_logprobs`")
        if self.continue_final_message and self.messages[-1].role != "assistant":
            raise fault("a last message of role assistant for `continue_final_message` to go on with")
        return self


HEARD.update(ChatBody.model_fields)


def _prompts(value: Any) -> Any:
    """A list of prompts, whatever the form of the field: text, ids, or a list of either."""
    prompts = value if isinstance(value, list) and value and all(isinstance(item, str | list) for item in value) else [value]
    if len(prompts) > MAX_PROMPTS:
        raise fault(f"at most {MAX_PROMPTS} prompts a request; {len(prompts)} were sent. Send several requests")
    for prompt in prompts:
        if not isinstance(prompt, str | list) or (isinstance(prompt, list) and any(type(item) is not int for item in prompt)):
            raise fault("a string, a list of token ids, or a list of either")
        if not prompt:
            raise fault("at least one character or token id")
    return prompts


class CompletionBody(GenerationBody):
    """`POST /v1/completions`. No chat template: the prompt is continued as it stands.

    Control-token spellings in a string are plain text; send ids for them. Several prompts are answered in their order, `n` choices each."""

    prompt: Annotated[
        list[str | list[int]], BeforeValidator(_prompts, json_schema_input_type=str | list[TokenId] | list[str] | list[list[TokenId]])
    ]
    echo: StrictBool | None = Field(None, description="The text begins with the prompt; then `max_tokens` 0 asks for the prompt only.")
    logprobs: int | None = Field(None, ge=0, le=MAX_ALTERNATIVES, description="Logarithms of each token and of so many likeliest ones.")

    @property
    def alternatives(self) -> int:
        return -1 if self.logprobs is None else self.logprobs

    @property
    def prompt_alternatives(self) -> int:
        return self.alternatives if self.echo else -1


class TokenizeBody(ThinkingBody, ToolsBody):
    """`POST /tokenize`: one of `prompt` and `messages`."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_generation_prompt: StrictBool | None = None
    add_special_tokens: StrictBool | None = Field(None, description="Without effect: this tokenizer adds none; the chat template does.")
    return_token_strs: StrictBool | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> TokenizeBody:
        if (self.prompt is None) == (self.messages is None):
            raise fault("exactly one of `prompt` and `messages`")
        refuse_unsupported({key: value for key, value in (self.model_extra or {}).items() if key in UNSUPPORTED})
        return self


class DetokenizeBody(Body):
    """`POST /detokenize`."""

    model: str | None = None
    tokens: list[TokenId]
