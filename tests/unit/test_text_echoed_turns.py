"""Turns as clients send them back: reasoning under either name, and an empty one, give the prompt that was computed before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.text.template import ChatTemplate
from lockstep.text.thinking import Thinking
from lockstep.text.tokenizer import Tokenizer

EMBEDDED = Path(__file__).parents[2] / "embedded"
TEMPLATE = ChatTemplate.load(EMBEDDED, Tokenizer.load(EMBEDDED))


def ids(**echoed: Any) -> list[int]:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello.", **echoed}, {"role": "user", "content": "more"}]
    return list(TEMPLATE.prompt(turns, Thinking(True, "high"), clear_thinking=False).ids)


def test_reasoning_is_kept_under_either_of_its_names() -> None:
    assert ids(reasoning="They greet.") == ids(reasoning_content="They greet.") != ids()


@pytest.mark.parametrize("echoed", [{"reasoning": ""}, {"reasoning": None}, {"reasoning_content": ""}, {"reasoning_content": None}])
def test_an_empty_reasoning_that_a_client_echoes_changes_no_token(echoed: dict[str, Any]) -> None:
    assert ids(**echoed) == ids()
