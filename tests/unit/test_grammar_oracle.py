"""Masks against those of a second grammar library, over the embedded checkpoint's tokenizer, on random ways through random grammars.

Where they differ for good reasons stands in `reason`; anything else fails. `GRAMMAR_SCHEMAS=N` walks N generated schemas instead of a few.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from fixtures.fronts import TOKENIZER
from fixtures.schemas import EOS_IDS, VOCABULARY, backend, schema_of
from grammars.formats import choice_form, json_form, plain_json, regex_form
from grammars.protocol import Form, GrammarError
from grammars.schema import enforceable

COUNT = int(os.environ.get("GRAMMAR_SCHEMAS", "8"))
STEPS, MORE = 120, 40
# The other library's own words for blanks, as bounded as ours.
BLANKS = {"x-guidance": {"whitespace_flexible": True, "whitespace_pattern": r"[ \n\r\t]{0,32}"}}


class _Words:
    """The tokenizer in the words of the other library, to which b"\\xff" begins a token that no text reaches."""

    def __init__(self) -> None:
        self.eos_token_id, self.bos_token_id, self.special_token_ids = EOS_IDS[0], None, ()
        control = frozenset(TOKENIZER.added.values())
        self.tokens = [b"\xff[%d]" % at if at in control else data for at, data in enumerate(VOCABULARY.spellings)]

    def __call__(self, text: str | bytes) -> list[int]:
        return TOKENIZER.encode(text if isinstance(text, str) else text.decode())


ORACLE = LLTokenizer(TokenizerWrapper(_Words()), n_vocab=TOKENIZER.size, eos_token=list(EOS_IDS), slices=[])


def comparable(part: Any) -> Any:
    """A schema without what the libraries see differently on purpose: theirs bounds no number of optional properties, searches for patterns
    instead of matching from end to end, and has mail addresses without quotes in them.
    """
    if isinstance(part, list):
        return [comparable(one) for one in part]
    if not isinstance(part, dict):
        return part
    found = {word: comparable(one) for word, one in part.items() if word not in ("minProperties", "maxProperties")}
    if "pattern" in found:
        found["pattern"] = f"^(?:{found['pattern'].removeprefix('^').removesuffix('$')})$"
    return {"type": "string", "format": "uuid"} if found.get("format") == "email" else found


def oracle_mask(matcher: LLMatcher) -> np.ndarray:
    bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    return np.unpackbits(bits, bitorder="little", count=TOKENIZER.size).astype(bool)


def reason(token: int, ours: np.ndarray, theirs: np.ndarray, text: bytes) -> str | None:
    """Why one library allows `token` behind `text` and the other does not; None if nobody knows. Ours is narrower, but for the first
    three.
    """
    data = TOKENIZER.token_bytes(token)
    if ours[token]:
        if b"\x7f" in data:
            return "a bare DEL, which JSON allows"
        if theirs.sum() == 1:
            return "forced text in other tokens than its tokenizer chooses"
        if text.endswith(b"-02-") and data == b"3":
            return "the 30th or 31st of February: ours holds a date's shape"
    elif b"\\" in data:
        return "an escape in a text with a length or a pattern"
    elif data.lstrip(b" \n\r\t") != data:
        return "blanks inside a listed value"
    elif text.endswith(b"\\") and data == b"u":
        return "an escape of a listed text's characters that its JSON has otherwise"
    elif data in (b"t", b"z"):
        return "a time's letters in lower case"
    elif data.isdigit():
        return "more than six decimals of a bounded number, or -0"
    return None


def walk(form: Form, oracle: str, seed: int, known: Counter[str]) -> tuple[int, list[str]]:
    """Masks compared, and what differs without a reason."""
    chance, found = random.Random(seed), []
    try:
        compiled = backend().compile(form)
    except GrammarError as error:
        known[f"refused by us: {error}"] += 1
        return 0, []
    ours, theirs = backend().matcher(compiled), LLMatcher(ORACLE, oracle)
    if theirs.is_error():
        known[f"refused: {theirs.get_error().splitlines()[0][:80]}"] += 1
        return 0, []
    text = b""
    for step in range(STEPS):
        mask, mirror = ours.allowed(), oracle_mask(theirs)
        for token in np.flatnonzero(mask != mirror):
            why = reason(int(token), mask, mirror, text)
            known[why or "unknown"] += 1
            if why is None:
                side = "only ours" if mask[token] else "only theirs"
                found.append(f"{side} allows {TOKENIZER.token_bytes(int(token))!r} behind {text[-30:]!r}")
        both = np.flatnonzero(mask & mirror)
        assert len(both), f"the libraries agree on no token behind {text[-60:]!r}"
        token = int(chance.choice(_preferred(both, step, chance)))
        if token in EOS_IDS:
            return step + 1, found
        assert ours.accept(token)
        assert theirs.consume_token(token)
        text += TOKENIZER.token_bytes(token)
    return STEPS, found


def _preferred(tokens: np.ndarray, step: int, chance: random.Random) -> list[int]:
    """Blanks seldom, and late in the walk what brings a value to its end."""
    dense = [int(token) for token in tokens if TOKENIZER.token_bytes(int(token)).strip()]
    closing = [token for token in dense if TOKENIZER.token_bytes(token)[-1:] in b'"}],:']
    if closing and step > MORE and chance.random() < 0.7:
        return closing
    return dense if dense and chance.random() < 0.9 else [int(token) for token in tokens]


@pytest.mark.parametrize(
    ("form", "oracle"),
    [
        (regex_form(r"[a-z]{3,12}(-[0-9]{2,6}){1,3}"), LLMatcher.grammar_from_regex(r"[a-z]{3,12}(-[0-9]{2,6}){1,3}")),
        (regex_form(r"(yes|no|maybe)( [A-Z][a-z0-9_]{0,5})*"), LLMatcher.grammar_from_regex(r"(yes|no|maybe)( [A-Z][a-z0-9_]{0,5})*")),
        (choice_form(["yes", "no", "yesterday"]), LLMatcher.grammar_from_regex("yes|no|yesterday")),
    ],
    ids=["regex", "words", "choice"],
)
def test_masks_of_plain_texts_are_those_of_the_oracle_to_the_bit(form: Form, oracle: str):
    for seed in range(4):
        known: Counter[str] = Counter()
        _, found = walk(form, oracle, seed, known)
        assert not found, found[:3]
        assert set(known) <= {"forced text in other tokens than its tokenizer chooses"}


def test_masks_of_json_schemas_are_those_of_the_oracle_but_for_what_is_listed(capsys: pytest.CaptureFixture[str]):
    known: Counter[str] = Counter()
    compared, odd = 0, {}
    for seed in range(COUNT):
        told = comparable(enforceable(schema_of(seed), "s"))
        masks, found = walk(plain_json(told), LLMatcher.grammar_from_json_schema(json.dumps(told | BLANKS)), seed, known)
        compared += masks
        if found:
            odd[seed] = found[:2]
    with capsys.disabled():
        sys.stdout.write(f"\n{COUNT} schemas, {compared} masks, differing tokens by reason: {dict(known)}\n")
    assert compared > 10 * COUNT
    assert not odd, odd


def test_the_walk_would_notice_another_grammar():
    form = json_form({"type": "integer", "minimum": 3, "maximum": 321}, "s")
    _, found = walk(
        form, LLMatcher.grammar_from_json_schema(json.dumps({"type": "integer", "minimum": 2, "maximum": 321} | BLANKS)), 1, Counter()
    )
    assert found
