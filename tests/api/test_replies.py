"""Replies of a real server, read by the official client and by hand."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from pydantic import TypeAdapter

from fixtures.fronts import TOKENIZER, Front, events, rounds
from lockstep.server.documents import ChatCompletion, ModelList, TextCompletion, Tokens

TEXT = "one two five☃ end."
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def client(front: Front) -> openai.OpenAI:
    return openai.OpenAI(base_url=front.url + "/v1", api_key="none", max_retries=0)


def test_the_openai_client_reads_the_same_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="glm-5.3-flash", messages=[{"role": "user", "content": "hi"}])
    chunks = list(client.chat.completions.create(model="glm-5.3-flash", messages=[{"role": "user", "content": "hi"}], stream=True))
    assert whole.choices[0].message.content == TEXT
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    assert whole.choices[0].finish_reason == chunks[-1].choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == sum(map(len, [*rounds("one ", "two five", end=False), TOKENIZER.encode("☃"), *rounds(" end.")]))


def test_the_openai_client_reads_completions_and_models(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="glm-5.3-flash", prompt="hi")
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(model="glm-5.3-flash", prompt="hi", stream=True))
    assert whole.choices[0].text == streamed == TEXT
    assert [model.id for model in client.models.list()] == ["glm-5.3-flash"]
    assert client.models.retrieve("glm-5.3-flash").id == "glm-5.3-flash"
    with pytest.raises(openai.NotFoundError, match=r"needed: `glm-5\.3-flash`"):
        client.models.retrieve("gpt/5")


def test_sixteen_clients_at_once_are_all_answered(client: openai.OpenAI) -> None:
    def ask(number: int) -> str | None:
        reply = client.chat.completions.create(model="glm-5.3-flash", messages=[{"role": "user", "content": f"{number}"}])
        return reply.choices[0].message.content

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, range(16))) == [TEXT] * 16


def test_a_stream_has_one_id_a_role_with_the_first_token_and_its_finish_in_a_chunk_of_its_own(front: Front) -> None:
    http = front.http
    reply = http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["x-accel-buffering"] == "no"
    *chunks, done = events(reply.text)
    assert done == "[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["object"]) for chunk in chunks}) == 1
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert all(delta.get("content") for delta in deltas[1:-1])
    assert deltas[-1] == {}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert not any("usage" in chunk for chunk in chunks)
    assert "\ufffd" not in reply.text


def test_usage_comes_once_and_last_when_it_is_asked_for(front: Front) -> None:
    http = front.http
    asked = events(http.post("/v1/chat/completions", json={**CHAT, "stream": True, "stream_options": {"include_usage": True}}).text)
    refused = events(http.post("/v1/chat/completions", json={**CHAT, "stream": True, "stream_options": {"include_usage": False}}).text)
    unasked = events(http.post("/v1/chat/completions", json={**CHAT, "stream": True}).text)
    always = {"include_usage": True, "continuous_usage_stats": True}
    running = events(http.post("/v1/completions", json={"prompt": "x", "stream": True, "stream_options": always}).text)
    assert [chunk["choices"] == [] for chunk in asked[:-1] if "usage" in chunk] == [True]
    assert asked[-2]["usage"]["prompt_tokens"] == http.post("/tokenize", json=CHAT).json()["count"]
    assert not any("usage" in chunk for chunk in [*refused[:-1], *unasked[:-1]])
    counts = [chunk["usage"]["completion_tokens"] for chunk in running[:-1] if "usage" in chunk]
    assert counts == sorted(counts)
    assert len(counts) > 3


def test_the_token_hash_is_that_of_the_ids_and_equal_in_both_forms(front: Front) -> None:
    http = front.http
    whole = http.post("/v1/chat/completions", json={**CHAT, "return_token_ids": True}).json()["lockstep"]
    chunks = events(http.post("/v1/chat/completions", json={**CHAT, "stream": True}).text)
    assert hashlib.sha256(",".join(map(str, whole["token_ids"])).encode()).hexdigest()[:12] == whole["token_sha"]
    assert chunks[-2]["lockstep"]["token_sha"] == whole["token_sha"]
    assert TOKENIZER.decode(whole["prompt_token_ids"]) == "[gMASK]<sop><|user|>hi<|assistant|><think></think>"


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": [[40, 41], [42]], "n": 2})])
def test_ids_stand_where_clients_of_vllm_look_for_them(front: Front, path: str, body: dict[str, Any]) -> None:
    asked = body | {"return_token_ids": True}
    whole = front.http.post(path, json=asked).json()
    prompts = [choice["prompt_token_ids"] for choice in whole["choices"]]
    assert prompts == ([[40, 41]] * 2 + [[42]] * 2 if "prompt" in body else [whole["lockstep"]["prompt_token_ids"]])
    assert whole["prompt_token_ids"] == prompts[0]
    assert all(choice["token_ids"] == whole["lockstep"]["token_ids"] for choice in whole["choices"])
    chunks = events(front.http.post(path, json=asked | {"stream": True}).text)[:-1]
    streamed = [choice for chunk in chunks for choice in chunk["choices"] if "token_ids" in choice]
    assert [sorted((one["index"], one["token_ids"], one["prompt_token_ids"]) for one in each) for each in (streamed, whole["choices"])] == [
        [(at, choice["token_ids"], choice["prompt_token_ids"]) for at, choice in enumerate(whole["choices"])]
    ] * 2
    assert "token_ids" not in front.http.post(path, json=body).text


def test_a_stop_string_ends_the_reply_in_both_forms(front: Front) -> None:
    body = {**CHAT, "stop": ["five"]}
    http = front.http
    whole = http.post("/v1/chat/completions", json=body).json()
    chunks = events(http.post("/v1/chat/completions", json={**body, "stream": True}).text)[:-1]
    assert whole["choices"][0]["message"]["content"] == "one two "
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "one two "
    assert whole["choices"][0]["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert whole["lockstep"]["stop_sequence"] == "five"
    assert whole["usage"]["completion_tokens"] == sum(map(len, rounds("one ", "two five", end=False)))


def test_max_tokens_ends_the_reply_with_length(front: Front) -> None:
    http = front.http
    reply = http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 500, "max_completion_tokens": 2}).json()
    assert (reply["choices"][0]["finish_reason"], reply["usage"]["completion_tokens"]) == ("length", 2)


def test_whole_replies_have_the_form_the_document_gives_them(front: Front) -> None:
    http = front.http
    for path, body, kind in (
        ("/v1/chat/completions", CHAT, ChatCompletion),
        ("/v1/completions", {"prompt": [40, 41]}, TextCompletion),
        ("/tokenize", {"prompt": "abc", "return_token_strs": True}, Tokens),
    ):
        TypeAdapter(kind).validate_json(http.post(path, json=body).content, strict=True)
    TypeAdapter(ModelList).validate_json(http.get("/v1/models").content, strict=True)
    document = http.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    assert {"ChatBody", "CompletionBody", "TokenizeBody", "DetokenizeBody", "ErrorReply"} <= set(schemas)
    assert "messages" in schemas["ChatBody"]["required"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/tokenize", "/detokenize", "/health", "/metrics"} <= set(
        document["paths"]
    )


def test_tokenize_gives_the_ids_a_generation_uses(front: Front) -> None:
    messages = [{"role": "system", "content": "Be <|user|> brief."}, {"role": "user", "content": "hi"}]
    thinking = {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low"}
    http = front.http
    for more in ({}, thinking):
        used = http.post("/v1/chat/completions", json={"messages": messages, "return_token_ids": True, **more}).json()
        ids = http.post("/tokenize", json={"messages": messages, **more}).json()["tokens"]
        assert ids == used["lockstep"]["prompt_token_ids"]
    assert "Reasoning Effort: Low" in http.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    plain = http.post("/v1/tokenize", json={"prompt": "a <|user|> ☃", "return_token_strs": True}).json()
    assert http.post("/v1/detokenize", json={"tokens": plain["tokens"]}).json() == {"prompt": "a <|user|> ☃"}
    assert plain["count"] == len(plain["tokens"]) == len(plain["token_strs"])


def test_a_request_id_comes_back_and_head_is_answered(front: Front) -> None:
    http = front.http
    assert http.get("/v1/models", headers={"x-request-id": "abc-1"}).headers["x-request-id"] == "abc-1"
    assert http.get("/nowhere").headers["x-request-id"]
    for stream in (False, True):
        http.post("/v1/chat/completions", json=CHAT | {"stream": stream}, headers={"x-request-id": f"mine-{stream}"})
        assert f"x-request-id mine-{stream}\n" in front.log.read_text()
    head = http.head("/health")
    assert (head.status_code, head.content) == (200, b"")


def test_metrics_carry_both_prefixes_and_move_with_requests(front: Front) -> None:
    def families(text: str) -> dict[str, float]:
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in lines}

    http = front.http
    before = families(http.get("/metrics").text)
    http.post("/v1/chat/completions", json=CHAT)
    after = families(http.get("/metrics").text)
    finished = 'vllm:request_success_total{finished_reason="stop",model_name="glm-5.3-flash"}'
    assert after[finished] == before.get(finished, 0) + 1
    assert after["lockstep_time_to_first_token_seconds_count"] == before["lockstep_time_to_first_token_seconds_count"] + 1
    assert (
        after['vllm:time_to_first_token_seconds_count{model_name="glm-5.3-flash"}'] == after["lockstep_time_to_first_token_seconds_count"]
    )
    steps = 'vllm:iteration_tokens_total_{}{{model_name="glm-5.3-flash"}}'
    assert (after[steps.format("count")], after[steps.format("sum")]) == (
        after["lockstep_steps_total"], after["lockstep_prompt_tokens_total"] + after["lockstep_generation_tokens_total"]
    )  # fmt: skip
    assert after["lockstep_request_most_tokens_sum"] > before["lockstep_request_most_tokens_sum"]
    assert after["lockstep_request_inference_seconds_count"] == before["lockstep_request_inference_seconds_count"] + 1
    assert {"lockstep_requests_running", 'vllm:num_requests_running{model_name="glm-5.3-flash"}'} <= set(after)
    assert not any(name.endswith("_created") for name in after)


@pytest.mark.parametrize("path", ["/slots", "/get_server_info", "/server_info", "/v1/nothing", "/docs"])
def test_routes_we_do_not_have_are_404_in_json(front: Front, path: str) -> None:
    http = front.http
    for reply in (http.get(path), http.post(path, content=b"x" * 100_000), http.request("DELETE", path, content=b"body")):
        assert reply.status_code == 404
        assert reply.json()["error"]["code"] == "not_found"
    assert http.get("/v1/chat/completions").status_code == 405
    wrong = http.put("/v1/responses/resp_0")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "DELETE, GET, HEAD")
    assert "needed: DELETE, GET, HEAD." in wrong.json()["error"]["message"]
    assert http.get("/ping").json() == {}
