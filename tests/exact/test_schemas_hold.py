"""Replies of the embedded model under generated schemas, sampled wildly so that they wander, against jsonschema's own judgement.

`GRAMMAR_SCHEMAS=N` asks for N schemas instead of a few.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest
from jsonschema import Draft202012Validator

from fixtures.engines import ask, engine
from fixtures.fronts import TOKENIZER
from fixtures.schemas import EOS_IDS, backend, schema_of, text_of
from grammars.formats import json_form
from grammars.protocol import GrammarError
from lockstep.core.types import EngineRequest, Grammar, Sampling

COUNT, FIRST = int(os.environ.get("GRAMMAR_SCHEMAS", "8")), 1000
PROMPT = tuple(TOKENIZER.encode("Here is the JSON value:\n"))


def wild(seed: int) -> Sampling:
    return Sampling(temperature=1.5 + seed % 3, top_k=(0, 40)[seed % 2], top_p=1.0, seed=seed)


def request(seed: int) -> EngineRequest | None:
    """None for a schema whose automaton is too large to be taken."""
    try:
        grammar = Grammar(str(seed), backend().compile(json_form(schema_of(seed), "s")))
    except GrammarError as error:
        if "automaton has" not in str(error):
            raise
        return None
    # Blanks are what an embedded model likes; without this the longest values would be cut.
    blanks = tuple((token, -6.0) for token in range(TOKENIZER.size) if not TOKENIZER.token_bytes(token).strip())
    sampling = wild(seed)
    told = Sampling(sampling.temperature, sampling.top_k, sampling.top_p, seed=seed, logit_bias=blanks)
    return EngineRequest(f"s{seed}", PROMPT, told, 600, frozenset(EOS_IDS), grammar=grammar)


def test_replies_fit_their_schemas_however_wildly_they_are_sampled(capsys: pytest.CaptureFixture[str]):
    async def scenario() -> list[tuple[int, tuple[int, ...]]]:
        found: list[tuple[int, tuple[int, ...]]] = []
        async with engine("--parallel", "4") as client:
            for start in range(FIRST, FIRST + COUNT, 8):
                asked = [(seed, request(seed)) for seed in range(start, min(start + 8, FIRST + COUNT))]
                kept = [(seed, one) for seed, one in asked if one is not None]
                answers = await asyncio.gather(*(ask(client, one) for _, one in kept))
                found += [(seed, tokens) for (seed, _), (tokens, _) in zip(kept, answers, strict=True)]
        return found

    replies = asyncio.run(scenario())
    ended, wrong = 0, {}
    for seed, tokens in replies:
        if tokens[-1] not in EOS_IDS:
            continue
        ended += 1
        value = json.loads(text_of(tokens))
        faults = [error.message for error in Draft202012Validator(schema_of(seed)).iter_errors(value)]
        if faults:
            wrong[seed] = (faults[0][:200], text_of(tokens)[:300])
    with capsys.disabled():
        sys.stdout.write(f"\n{COUNT} schemas, {len(replies)} served, {ended} replies whole, {len(wrong)} of them wrong\n")
    assert not wrong, wrong
    assert ended > COUNT // 2
