"""What a request's fields become for the engine: seeds, defaults, room."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fixtures.fronts import TOKENIZER
from lockstep.core.types import Picture
from lockstep.server.errors import ApiError
from lockstep.server.generation import PromptIds, engine_request
from lockstep.server.schema import ChatBody

SITE: Any = SimpleNamespace(
    tokenizer=TOKENIZER,
    context=1000,
    options=SimpleNamespace(max_tokens=500),
    generation=SimpleNamespace(temperature=0.9, top_p=0.8, eos_token_ids=(2247,)),
)
IDS = tuple(range(600))


def picture(digest: str) -> Picture:
    return Picture(3, 4, 1, 28, 28, digest * 64, b"")


def made(prompt: PromptIds, choice: int = 0, wanted: int | None = None, **fields: Any) -> Any:
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "x"}]} | fields)
    return engine_request(SITE, body, prompt, "r", wanted, choice)


def test_the_default_seed_is_that_of_prompt_and_pictures() -> None:
    plain, red, blue = (PromptIds(IDS, "messages", "", pictures=shown) for shown in ((), (picture("a"),), (picture("b"),)))
    seeds = [made(prompt).sampling.seed for prompt in (plain, red, blue, plain)]
    assert seeds[0] == seeds[3]
    assert len(set(seeds)) == 3
    assert made(PromptIds(IDS[:-1], "messages", "")).sampling.seed not in seeds
    assert {made(prompt, seed=7).sampling.seed for prompt in (plain, red, blue)} == {7}


def test_each_choice_has_a_seed_of_its_own_and_the_first_the_requests() -> None:
    prompt = PromptIds(IDS, "messages", "")
    for fields in ({}, {"seed": -1}):
        seeds = [made(prompt, choice, **fields).sampling.seed for choice in range(16)]
        assert len(set(seeds)) == 16
        assert seeds[0] == made(prompt, **fields).sampling.seed
    assert made(prompt, seed=-1).sampling.seed == 2**64 - 1


def test_what_is_left_out_has_the_published_defaults_and_the_room_that_is_left() -> None:
    request = made(PromptIds(IDS, "messages", ""))
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.9, 0.8, 20, 0.0)
    assert (sampling.has_penalties, sampling.logit_bias, request.logprobs, request.prompt_logprobs, request.close_after) == (
        False,
        (),
        -1,
        -1,
        None,
    )
    assert request.max_tokens == 400
    assert made(PromptIds(IDS[:10], "messages", "")).max_tokens == 500
    assert made(PromptIds(IDS, "messages", ""), wanted=400).max_tokens == 400
    with pytest.raises(ApiError, match=r"maximum context length is 1000 tokens\. However, you requested 1001"):
        made(PromptIds(IDS, "messages", ""), wanted=401)


def test_fields_reach_the_sampler_as_they_were_sent() -> None:
    fields = {
        "presence_penalty": 0.5,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "logit_bias": {"9": 2, "3": -1.5, "4": 0},
        "top_k": -1,
    }
    request = made(PromptIds(IDS, "messages", "", close_after=(5, 7)), logprobs=True, top_logprobs=4, temperature=1e-5, **fields)
    sampling = request.sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.5, -1, 1.5)
    assert (sampling.logit_bias, sampling.top_k, sampling.temperature) == (((3, -1.5), (9, 2.0)), 0, 0.0)
    assert (request.logprobs, request.close_after, sampling.has_penalties) == (4, (5, 7), True)
