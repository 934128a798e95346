"""Plain text never becomes a control token, and ids become text as the tokenizer's own library has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from lockstep.text.errors import CheckpointTextError, TextError, TooManyTokens
from lockstep.text.reply import ReplyText
from lockstep.text.tokenizer import Tokenizer

EMBEDDED = Path(__file__).parents[2] / "embedded"
TOKENIZER = Tokenizer.load(EMBEDDED)
LIBRARY = Library.from_file(str(EMBEDDED / "tokenizer.json"))
SPELLINGS = sorted(TOKENIZER.added)

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(SPELLINGS)
texts = st.lists(words, max_size=8).map("".join)


@given(texts)
@settings(max_examples=200)
def test_plain_text_gives_no_special_id_and_comes_back_whole(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert not set(ids) & set(TOKENIZER.added.values())
    assert TOKENIZER.decode(ids) == text


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_spelling_of_every_control_token_is_plain_text(spelling: str) -> None:
    assert TOKENIZER.added[spelling] not in TOKENIZER.encode(f"a {spelling} b")
    assert TOKENIZER.decode([TOKENIZER.added[spelling]]) == spelling


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60).filter(lambda text: not any(word in text for word in SPELLINGS)))
@settings(max_examples=200)
def test_text_without_control_tokens_is_cut_as_the_library_cuts_it(text: str) -> None:
    assert TOKENIZER.encode(text) == LIBRARY.encode(text, add_special_tokens=False).ids


@given(st.lists(st.integers(0, TOKENIZER.size - 1), max_size=40))
@settings(max_examples=300)
def test_ids_decode_as_the_library_decodes_them(ids: list[int]) -> None:
    assert TOKENIZER.decode(ids) == LIBRARY.decode(ids, skip_special_tokens=False)


@given(st.lists(st.integers(0, TOKENIZER.size - 1), max_size=40))
@settings(max_examples=300)
def test_a_reply_token_by_token_is_the_full_decode_without_its_half_last_character(ids: list[int]) -> None:
    shown = [token for token in ids if not TOKENIZER.is_hidden(token)]
    reply = ReplyText(TOKENIZER, split_reasoning=False)
    joined = "".join(reply.feed([token]).content for token in ids) + reply.finish().content
    whole = b"".join(map(TOKENIZER.token_bytes, shown)).decode("utf-8", errors="replace")
    assert joined == whole or (whole.startswith(joined) and set(whole[len(joined) :]) == {"\ufffd"})


def test_a_character_cut_over_tokens_appears_once_it_is_whole() -> None:
    ids = TOKENIZER.encode("☃")
    assert len(ids) > 1
    reply = ReplyText(TOKENIZER)
    assert [reply.feed([token]).content for token in ids] == [""] * (len(ids) - 1) + ["☃"]


def test_a_lone_surrogate_is_refused_in_words() -> None:
    with pytest.raises(TextError, match="lone surrogate"):
        TOKENIZER.encode("a\ud800b")


@pytest.mark.parametrize(
    ("change", "words"),
    [({"decoder": None}, "ByteLevel"), ({"model": {"type": "Unigram"}}, "needed: BPE"), ({"added_tokens": []}, "<think>")],
)
def test_a_tokenizer_we_cannot_read_back_is_refused(change: dict, words: str) -> None:
    definition = json.loads((EMBEDDED / "tokenizer.json").read_text()) | change
    with pytest.raises(CheckpointTextError, match=words):
        Tokenizer(definition)


def test_a_missing_tokenizer_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointTextError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_a_text_far_past_a_limit_is_refused_before_it_is_encoded_whole() -> None:
    with pytest.raises(TooManyTokens) as refusal:
        TOKENIZER.encode("1 " * 1_000_000, limit=4096)
    assert 4096 < refusal.value.at_least < 100_000


@pytest.mark.parametrize("text", ["word " * 3000, "1 " * 3000])
def test_a_text_near_a_limit_is_encoded_as_without_one(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.encode(text, limit=len(ids)) == TOKENIZER.encode(text, limit=len(ids) - 1) == ids
