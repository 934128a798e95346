"""Agents, evaluations and benchmarks as they ask: each shape completes its task on the embedded model.

LangChain and LiteLLM are asked themselves where they are installed; nothing else of the project needs their many packages.
"""

from __future__ import annotations

import json
from typing import Any

import anthropic
import openai
import pytest

from fixtures.fronts import TOKENIZER, Front, events

MODEL = "glm-5.3-flash"
QUESTION, RESULT = "What is the weather in Rome?", "sunny, 21 degrees"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Weather of a city", "parameters": SCHEMA}


@pytest.fixture(scope="module")
def openai_client(embedded: Front) -> Any:
    return openai.OpenAI(base_url=embedded.url + "/v1", api_key="none", max_retries=0)


CODEX = {
    "model": MODEL,
    "instructions": "You are a helpful assistant.",
    "parallel_tool_calls": False,
    "prompt_cache_key": "0199-aa",
    "client_metadata": {"session": "0199-aa"},
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"effort": "none", "summary": "auto"},
    "text": {"verbosity": "low"},
    "store": False,
    "stream": True,
    "tool_choice": "auto",
    "temperature": 0,
    "tools": [
        {"type": "function", "strict": False, **FUNCTION},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.*/"}},
        {"type": "web_search"},
        {"type": "namespace", "name": "mcp__x", "tools": []},
    ],
}


def codex_turn(front: Front, items: list[Any]) -> dict[str, Any]:
    """The finished response of a streamed turn, whose events are as strict readers want them."""
    with front.http.stream("POST", "/v1/responses", json=CODEX | {"input": items}) as reply:
        lines = list(reply.iter_lines())
    assert reply.status_code == 200, lines
    named = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    told = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert [event["type"] for event in told] == named
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    added: set[str] = set()
    for event in told:
        if event["type"] == "response.output_item.added":
            added.add(event["item"]["id"])
        elif "item_id" in event:
            assert event["item_id"] in added
    assert named[:2] == ["response.created", "response.in_progress"]
    assert named[-1] == "response.completed"
    assert told[-1]["response"]["output"] == [event["item"] for event in told if event["type"] == "response.output_item.done"]
    return told[-1]["response"]


def test_a_session_shaped_like_codex_completes_a_tool_task_in_two_turns(embedded: Front) -> None:
    items: list[Any] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
    ]
    first = codex_turn(embedded, items)
    [call] = [item for item in first["output"] if item["type"] == "function_call"]
    assert (call["name"], json.loads(call["arguments"])) == ("get_weather", {"city": "Rome"})
    items += [*first["output"], {"type": "function_call_output", "call_id": call["call_id"], "output": RESULT}]
    second = codex_turn(embedded, items)
    assert "21" in second["output"][-1]["content"][0]["text"]
    assert second["usage"]["input_tokens_details"]["cached_tokens"] > 0
    probe = embedded.http.post("/v1/responses", json={"model": MODEL, "input": [], "max_output_tokens": 1})
    assert probe.status_code == 200


def test_counted_input_is_what_a_response_reads(embedded: Front, openai_client: Any) -> None:
    tools = [{"type": "function", **FUNCTION}, {"type": "web_search"}]
    asked = {"model": MODEL, "input": QUESTION, "instructions": "Be short.", "tools": tools, "reasoning": {"effort": "low"}}
    first = openai_client.responses.create(**asked, max_output_tokens=4)
    assert openai_client.responses.input_tokens.count(**asked).input_tokens == first.usage.input_tokens
    more = {"model": MODEL, "input": "And in Oslo?", "previous_response_id": first.id}
    counted = openai_client.responses.input_tokens.count(**more)
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == openai_client.responses.create(**more, max_output_tokens=4).usage.input_tokens
    with pytest.raises(openai.NotFoundError):
        openai_client.responses.input_tokens.count(input="hi", previous_response_id="resp_0")
    assert embedded.http.get("/v1/responses/input_tokens").status_code == 404, "an id like any other"


def claude_body(turns: list[Any], number: int, system: str = "You are a helpful assistant.") -> dict[str, Any]:
    """As Claude Code sends it; `number` changes with every request of its billing line."""
    return {
        "model": "claude-haiku-4-5",
        "max_tokens": 200,
        "stream": True,
        "temperature": 0,
        "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={number:05x};"},
            {"type": "text", "text": system, "cache_control": {"type": "ephemeral"}},
        ],
        "messages": turns,
        "tools": [
            {"name": "get_weather", "description": "Weather of a city", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}
        ],
        "metadata": {"user_id": "user_1_session_2"},
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
    }


def claude_turn(front: Front, body: dict[str, Any]) -> anthropic.types.Message:
    client = anthropic.Anthropic(base_url=front.url, api_key="none", max_retries=0)
    named = {key: body[key] for key in ("model", "max_tokens", "system", "messages", "tools", "metadata")}
    extra = {key: value for key, value in body.items() if key not in named and key != "stream"}
    with client.messages.stream(**named, extra_body=extra, extra_query={"beta": "true"}) as stream:
        return stream.get_final_message()


def test_a_session_shaped_like_claude_code_completes_a_tool_task_in_two_turns(embedded: Front) -> None:
    turns: list[Any] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    first = claude_turn(embedded, claude_body(turns, 1))
    call = first.content[-1]
    assert isinstance(call, anthropic.types.ToolUseBlock)
    assert (call.name, call.input, first.stop_reason) == ("get_weather", {"city": "Rome"}, "tool_use")
    said = [block.to_dict(mode="json") for block in first.content]
    told = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": RESULT}]}
    turns += [{"role": "assistant", "content": said}, {"role": "user", "content": [told]}]
    second = claude_turn(embedded, claude_body(turns, 2))
    answer = second.content[-1]
    assert isinstance(answer, anthropic.types.TextBlock)
    assert "21" in answer.text
    assert second.usage.cache_read_input_tokens


@pytest.mark.parametrize("is_block", [True, False], ids=["blocks", "text"])
def test_a_billing_line_that_changes_defeats_neither_reuse_nor_counting(embedded: Front, is_block: bool) -> None:
    turns = [{"role": "user", "content": "hello"}]
    bodies = [claude_body(turns, number, f"Agent {is_block}. " * 40) for number in (17, 18)]
    if not is_block:
        bodies = [body | {"system": "\n".join(block["text"] for block in body["system"])} for body in bodies]
    replies = [embedded.http.post("/v1/messages?beta=true", json=body | {"stream": False}).json() for body in bodies]
    asked = [{key: body[key] for key in ("model", "system", "messages", "tools")} for body in bodies]
    counts = [embedded.http.post("/v1/messages/count_tokens?beta=true", json=body).json()["input_tokens"] for body in asked]
    usages = [reply["usage"] for reply in replies]
    assert [usage["input_tokens"] + usage["cache_read_input_tokens"] for usage in usages] == counts
    assert counts[0] == counts[1]
    assert usages[1]["cache_read_input_tokens"] >= counts[1] - 64


def test_claude_code_may_knock_at_the_base_and_send_any_of_its_headers(embedded: Front) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "x-api-key": "k", "x-stainless-lang": "js"}
    assert embedded.http.head("/", headers=headers).status_code < 500
    reply = embedded.http.post("/v1/messages?beta=true", headers=headers, json={"messages": [], "max_tokens": 1})
    assert (reply.status_code, reply.json()["type"], reply.json()["error"]["type"]) == (400, "error", "invalid_request_error")


def loglikelihoods(front: Front, pairs: list[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
    """As lm-eval's local-completions asks and reads: the sum over the continuation, and whether it is the likeliest."""
    body = {
        "model": MODEL,
        "prompt": [start + more for start, more in pairs],
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    reply = front.http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    found = []
    for choice, (start, _) in zip(sorted(reply.json()["choices"], key=lambda one: one["index"]), pairs, strict=True):
        rows = choice["logprobs"]
        assert all(word in top for word, top in zip(rows["tokens"][1:], rows["top_logprobs"][1:], strict=True)), "likely or not"
        told = rows["token_logprobs"][len(start) : -1]
        likeliest = [max(top.values()) for top in rows["top_logprobs"][len(start) : -1]]
        found.append((sum(told), told == likeliest))
    return found


def test_lm_evals_requests_are_answered_as_it_reads_them(embedded: Front) -> None:
    info = embedded.http.get("/tokenizer_info").json()
    assert info["eos_token"]
    assert info["chat_template"]
    start = embedded.http.post("/tokenize", json={"prompt": "one two three", "add_special_tokens": False}).json()["tokens"]
    body = {"model": MODEL, "prompt": [start], "temperature": 0, "max_tokens": 8, "seed": 1234, "stop": [], "logprobs": 1}
    made = embedded.http.post("/v1/completions", json=body | {"return_token_ids": True}).json()
    ids, rows = made["lockstep"]["token_ids"], made["choices"][0]["logprobs"]
    other = [(ids[0] + 1) % 2000, *ids[1:]]
    (likely, is_greedy), (unlikely, is_other_greedy) = loglikelihoods(embedded, [(start, ids), (start, other)])
    assert likely == pytest.approx(sum(rows["token_logprobs"]), abs=1e-3)
    assert (is_greedy, is_other_greedy) == (True, False)
    assert unlikely < likely
    assert loglikelihoods(embedded, [(start, ids)])[0] == (likely, is_greedy)
    chat = {"messages": [{"type": "text", "role": "user", "content": "hi"}], "model": MODEL, "max_tokens": 8, "temperature": 0,
            "stop": ["\n\n"], "seed": 1234}  # fmt: skip
    assert embedded.http.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]["content"]


@pytest.mark.parametrize("number", [2, 16])
def test_choices_differ_repeat_themselves_and_count_their_prompt_once(embedded: Front, number: int) -> None:
    body = {
        "messages": [{"role": "user", "content": "Say a word."}],
        "n": number,
        "max_tokens": 8,
        "temperature": 2.0,
        "top_k": 0,
        "seed": 5,
    }
    one, two = (embedded.http.post("/v1/chat/completions", json=body).json() for _ in range(2))
    alone = embedded.http.post("/v1/chat/completions", json=body | {"n": 1}).json()
    texts = [choice["message"]["content"] for choice in one["choices"]]
    assert [choice["index"] for choice in one["choices"]] == list(range(number))
    assert len(set(texts)) > 1
    assert texts == [choice["message"]["content"] for choice in two["choices"]]
    assert texts[0] == alone["choices"][0]["message"]["content"]
    assert one["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
    chunks = events(embedded.http.post("/v1/chat/completions", json=body | {"stream": True}).text)[:-1]
    for place, text in enumerate(texts):
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == place]
        assert "".join(choice["delta"].get("content") or "" for choice in own) == text
        assert [choice["delta"].get("role") for choice in own].count("assistant") == 1
        assert own[-1]["finish_reason"] in ("stop", "length")


def test_logarithms_are_the_same_whole_streamed_and_without_drafts(embedded: Front) -> None:
    body = {"messages": [{"role": "user", "content": "Count ☃ to five."}], "logprobs": True, "top_logprobs": 3, "max_tokens": 24,
            "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2, "logit_bias": {"46": 2}}  # fmt: skip
    whole, serial = (embedded.http.post("/v1/chat/completions", json=body | {"draft": draft}).json() for draft in (True, False))
    chunks = events(embedded.http.post("/v1/chat/completions", json=body | {"stream": True}).text)[:-1]
    streamed = [row for chunk in chunks for row in (chunk["choices"][0]["logprobs"] or {}).get("content", ())]
    rows = whole["choices"][0]["logprobs"]["content"]
    assert rows == serial["choices"][0]["logprobs"]["content"] == streamed
    assert whole["lockstep"]["token_sha"] == serial["lockstep"]["token_sha"]
    assert len(rows) == whole["usage"]["completion_tokens"]
    assert all(row["logprob"] <= row["top_logprobs"][0]["logprob"] <= 0 and row["bytes"] and len(row["top_logprobs"]) == 3 for row in rows)


def test_thoughts_end_where_their_budget_does_and_the_reply_says_so(embedded: Front) -> None:
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 64, "reasoning_effort": "high", "return_token_ids": True,
            "temperature": 1.5, "top_k": 0, "top_p": 1.0}  # fmt: skip
    free = embedded.http.post("/v1/chat/completions", json=body).json()
    thought = free["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert thought > 4
    for name in ("thinking_budget", "thinking_token_budget", "reasoning_budget"):
        bound = embedded.http.post("/v1/chat/completions", json=body | {name: 3}).json()
        ids = bound["lockstep"]["token_ids"]
        assert ids[:3] == free["lockstep"]["token_ids"][:3]
        assert (ids[3], ids.count(TOKENIZER.think_close)) == (TOKENIZER.think_close, 1)
        assert bound["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4
        assert bound["lockstep"]["thinking_budget_used_up"] is True
    ample = embedded.http.post("/v1/chat/completions", json=body | {"thinking_budget": 60}).json()
    assert ample["lockstep"]["thinking_budget_used_up"] is False
    assert ample["lockstep"]["token_sha"] == free["lockstep"]["token_sha"]


COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PARTS = {"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}]}], "max_completion_tokens": 6, "ignore_eos": True}
TEXT: dict[str, Any] = {"prompt": "one two", "max_tokens": 6, "ignore_eos": True}
USAGE: dict[str, Any] = {"stream_options": {"include_usage": True}}
ALWAYS: dict[str, Any] = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
BENCHES: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm bench, completions": (COMPLETIONS, TEXT | USAGE | {"repetition_penalty": 1.0, "temperature": 0.0, "logprobs": None}),
    "vllm bench, chat": (CHAT, PARTS | USAGE | {"temperature": 0.0}),
    "guidellm, completions": (COMPLETIONS, TEXT | ALWAYS | {"stop": None}),
    "guidellm, chat": (CHAT, PARTS | ALWAYS | {"stop": None}),
    "aiperf": (CHAT, PARTS | USAGE | {"messages": [{"role": "user", "content": "one", "name": ""}], "min_tokens": 6}),
    "sparkDash": (
        CHAT,
        PARTS
        | USAGE
        | {"min_tokens": 6, "max_tokens": 6, "stop": [], "temperature": 0, "chat_template_kwargs": {"enable_thinking": False}},
    ),
}


@pytest.mark.parametrize("name", BENCHES)
def test_a_benchmark_counts_the_tokens_it_asked_for(embedded: Front, name: str) -> None:
    path, body = BENCHES[name]
    with embedded.http.stream("POST", path, json=body | {"model": MODEL, "stream": True}, headers={"x-request-id": "bench-1"}) as reply:
        text = "".join(reply.iter_text())
    *chunks, usage, done = events(text)
    assert (reply.status_code, reply.headers["x-request-id"], done) == (200, "bench-1", "[DONE]")
    assert chunks[0]["choices"]
    assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 6)
    assert not any("error" in chunk for chunk in chunks)


def test_guidellm_asks_for_responses_too(embedded: Front) -> None:
    body = {"model": MODEL, "input": "one", "max_output_tokens": 6, "ignore_eos": True, "stream": True}
    lines = embedded.http.post("/v1/responses", json=body).text.splitlines()
    told = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    assert told[-1]["response"]["usage"]["output_tokens"] == 6
    assert told[-1]["type"] == "response.incomplete"


def test_langchain_completes_a_tool_task_and_knows_a_prompt_that_is_too_long(embedded: Front) -> None:
    chat_models = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    messages = pytest.importorskip("langchain_core.messages")
    errors = pytest.importorskip("langchain_core.exceptions")
    model = chat_models.ChatOpenAI(model=MODEL, base_url=embedded.url + "/v1", api_key="none", temperature=0, max_retries=0)
    armed = model.bind_tools([{"type": "function", "function": FUNCTION}])
    turns: list[Any] = [messages.HumanMessage(QUESTION)]
    turns.append(armed.invoke(turns))
    [call] = turns[-1].tool_calls
    assert (call["name"], call["args"]) == ("get_weather", {"city": "Rome"})
    turns.append(messages.ToolMessage(RESULT, tool_call_id=call["id"]))
    assert "21" in armed.invoke(turns).content
    assert "21" in "".join(chunk.content for chunk in armed.stream(turns))
    bound = model.with_structured_output(SCHEMA | {"title": "Place"}, method="json_schema").invoke(QUESTION)
    assert isinstance(bound["city"], str)
    with pytest.raises(errors.ContextOverflowError):
        model.invoke("word " * 4000)


def test_litellm_maps_our_errors_to_its_classes(embedded: Front) -> None:
    litellm = pytest.importorskip("litellm", reason="litellm is not installed")
    hello = [{"role": "user", "content": "hi"}]
    told: dict[str, Any] = {"api_base": embedded.url + "/v1", "api_key": "none", "max_retries": 0, "num_retries": 0}
    reply = litellm.completion(model=f"openai/{MODEL}", messages=hello, max_tokens=4, **told)
    assert reply.usage.completion_tokens
    for error, model, messages in (
        (litellm.ContextWindowExceededError, MODEL, [{"role": "user", "content": "word " * 4000}]),
        (litellm.NotFoundError, "gpt-9", hello),
        (litellm.BadRequestError, MODEL, [{"role": "nobody", "content": "hi"}]),
    ):
        with pytest.raises(error):
            litellm.completion(model=f"openai/{model}", messages=messages, **told)
    claude = litellm.completion(
        model=f"anthropic/{MODEL}", messages=hello, max_tokens=4, api_base=embedded.url, api_key="none", num_retries=0
    )
    assert claude.usage.completion_tokens
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(model=f"anthropic/{MODEL}", messages=[{"role": "user", "content": "word " * 4000}], max_tokens=4,
                           api_base=embedded.url, api_key="none", num_retries=0)  # fmt: skip
