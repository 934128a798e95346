"""Under a grammar too: drafted equals serial, together equals alone, on one rank and on two, in tokens and in state."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from fixtures.engines import GREEDY, MODEL, SAMPLED, Answer, ask, engine
from fixtures.fronts import CLOSE, TOKENIZER
from fixtures.schemas import EOS_IDS, backend, is_valid, text_of
from grammars.calls import CallTags, calls_form
from grammars.formats import json_form
from grammars.protocol import Form
from lockstep.core.types import EngineRequest, Grammar, Sampling
from lockstep.text.template import ChatTemplate
from lockstep.text.thinking import Thinking
from lockstep.text.tools import Tag

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"]}}}  # fmt: skip
TAGS = CallTags(*(TOKENIZER.added[tag.value] for tag in Tag))
FORMS: dict[str, Form] = {
    "schema": json_form(SCHEMA, "s"),
    "calls": calls_form([TOOL], TAGS, many=True),
}
WIDE = Sampling(temperature=1.7, top_k=0, top_p=1.0, seed=5)
SETTINGS = {"greedy": GREEDY, "sampled": SAMPLED, "wide": WIDE}
TEMPLATE = ChatTemplate.load(MODEL, TOKENIZER)


def requests() -> list[EngineRequest]:
    """Each form under each way of sampling, one of each kind behind reasoning."""
    found = []
    for place, (form, sampling) in enumerate((form, sampling) for form in FORMS.values() for sampling in SETTINGS.values()):
        thinks = place % 3 == 2
        said = [{"role": "user", "content": f"Give me number {place} as JSON, please."}]
        prompt = TEMPLATE.prompt(said, Thinking(thinks))
        grammar = Grammar(str(place), backend().compile(form), CLOSE if thinks else -1)
        found.append(EngineRequest(f"r{place}", prompt.ids, sampling, 100, frozenset(EOS_IDS), grammar=grammar))
    return found


def alone(wanted: EngineRequest, name: str) -> EngineRequest:
    return replace(wanted, id=f"{wanted.id}-{name}")


@pytest.mark.parametrize("flags", [(), ("--ranks", "2", "--drafter", str(MODEL / "drafter"))], ids=["chain", "block drafter, two ranks"])
def test_constrained_drafted_equals_constrained_serial_alone_and_together(flags: tuple[str, ...]):
    wanted = requests()

    async def scenario() -> tuple[list[Answer], list[Answer], list[Answer]]:
        async with engine(*flags) as client:
            serial = [await ask(client, replace(alone(one, "serial"), draft=False)) for one in wanted]
            drafted = [await ask(client, alone(one, "drafted")) for one in wanted]
            together = await asyncio.gather(*(ask(client, alone(one, "together")) for one in wanted))
            return serial, drafted, list(together)

    serial, drafted, together = asyncio.run(scenario())
    assert drafted == serial
    assert together == serial
    assert all(state for _, state in serial)
    assert len({tokens for tokens, _ in serial}) == len(wanted), "the requests differ, and so should their replies"
    ended = [tokens for tokens, _ in serial if tokens[-1] in EOS_IDS]
    assert len(ended) > len(wanted) // 2
    for tokens, _ in serial[:2]:
        if tokens[-1] in EOS_IDS:
            assert is_valid(SCHEMA, text_of(tokens))
