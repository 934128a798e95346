"""Builds a needle question of any length from the bundled sentences and codes: three codes at 1/6, 1/2 and 5/6. Knows no server."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

DEPTHS = (1 / 6, 1 / 2, 5 / 6)
# Measured on the embedded tokenizer; larger vocabularies need fewer tokens, so a prompt never outgrows its length by this estimate.
TOKENS_PER_SENTENCE = 9.7
SENTENCES_PER_PARAGRAPH = 8


def build(parts: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """A case whose prompt has about `tokens` tokens; the same length always gives the same text."""
    rng = Random(tokens)
    codes = rng.sample(parts["codes"], len(DEPTHS))
    count = max(len(DEPTHS), round(tokens / TOKENS_PER_SENTENCE))
    lines = [rng.choice(parts["sentences"]) for _ in range(count)]
    for depth, (name, code) in sorted(zip(DEPTHS, codes, strict=True), reverse=True):
        lines.insert(int(depth * count), parts["needle"].format(n=name, c=code))
    blocks = [" ".join(lines[i : i + SENTENCES_PER_PARAGRAPH]) for i in range(0, len(lines), SENTENCES_PER_PARAGRAPH)]
    names = [name for name, _ in codes]
    question = parts["question"].format(n=", ".join(names[:-1]) + " and " + names[-1])
    content = "\n\n".join([parts["head"], *blocks, question])
    return {
        "id": f"needles-{tokens}",
        "messages": [{"role": "user", "content": content}],
        "max_tokens": 300,
        "expect": {"kind": "contains", "texts": [str(code) for _, code in codes]},
    }
