"""Remembered pieces have the ids they would get again, owners share none, and the memo stays within its bound."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.server.namespace import NamespaceError, Namespaces
from lockstep.text.errors import TextError, TooManyTokens
from lockstep.text.memo import PieceMemo
from lockstep.text.template import ChatTemplate
from lockstep.text.thinking import default_thinking
from lockstep.text.tokenizer import Tokenizer

EMBEDDED = Path(__file__).parents[2] / "embedded"
TOKENIZER = Tokenizer.load(EMBEDDED)


class Counting(Tokenizer):
    """Counts the texts that were really encoded."""

    def __init__(self) -> None:
        self.__dict__ = TOKENIZER.__dict__ | {"encoded": 0}

    def encode_many(self, texts, limit=None):
        self.encoded += len(texts)
        return super().encode_many(texts, limit)


@settings(max_examples=60)
@given(st.lists(st.lists(st.sampled_from(["", " a", "b", "ä€😀", "<|user|>", "1234 5678", "\n\n x"]), max_size=6), max_size=8))
def test_ids_are_those_of_the_tokenizer_whatever_was_seen_before(rounds: list[list[str]]):
    memo = PieceMemo(TOKENIZER, most_characters=600)
    for texts in rounds:
        assert list(map(list, memo.encode_many(texts, None, "a"))) == TOKENIZER.encode_many(texts)


def test_only_what_is_unknown_to_the_owner_is_encoded():
    tokenizer = Counting()
    memo = PieceMemo(tokenizer)
    memo.encode_many(["one", "two"], 99, "a")
    memo.encode_many(["one", "two", "three"], 99, "a")
    assert tokenizer.encoded == 3
    memo.encode_many(["one"], 99, "b")
    assert tokenizer.encoded == 4, "another owner has not seen it"


def test_the_oldest_pieces_are_forgotten():
    tokenizer = Counting()
    memo = PieceMemo(tokenizer, most_characters=3 * 300)
    for text in ("a", "b", "c", "a", "d"):
        memo.encode_many([text * 30], None, "")
    assert tokenizer.encoded == 4
    memo.encode_many(["b" * 30, "a" * 30], None, "")
    assert tokenizer.encoded == 5, "b was used longest ago"


def test_remembered_ids_share_their_numbers_so_that_a_token_takes_eight_bytes():
    first, second = PieceMemo(TOKENIZER).encode_many(["count the rivers", " count the rivers and the rivers"], None, "")
    seen = {token: token for token in first if token > 256}
    shared = [token for token in second if token in seen]
    assert shared
    assert all(token is seen[token] for token in shared)
    assert sys.getsizeof(second) == sys.getsizeof(()) + 8 * len(second)


def test_bad_text_and_long_text_are_refused_as_before():
    memo = PieceMemo(TOKENIZER)
    with pytest.raises(TextError, match="lone surrogate"):
        memo.encode_many(["\ud800"], None, "")
    with pytest.raises(TooManyTokens):
        memo.encode_many(["word " * 4000], 10, "")


def test_a_conversation_gets_the_same_ids_whole_and_grown():
    turns = [{"role": role, "content": f"{role} says {at} things <|user|> ä"} for at in range(6) for role in ("user", "assistant")]
    grown, thinking = ChatTemplate.load(EMBEDDED, TOKENIZER), default_thinking(False, "high")
    for end in range(1, len(turns), 2):
        fresh = ChatTemplate.load(EMBEDDED, TOKENIZER)
        assert grown.prompt(turns[:end], thinking, owner="a") == fresh.prompt(turns[:end], thinking)


def test_marks_stand_before_the_first_turn_the_newest_turn_and_the_reply():
    template = ChatTemplate.load(EMBEDDED, TOKENIZER)
    turns = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    turns.append({"role": "user", "content": "c"})
    prompt = template.prompt(turns, default_thinking(True, "high"))
    user, reply = TOKENIZER.added["<|user|>"], TOKENIZER.added["<|assistant|>"]
    first, newest = (at for at, token in enumerate(prompt.ids) if token == user)
    assert prompt.marks == (first, newest, max(at for at, token in enumerate(prompt.ids) if token == reply))


def test_names_differ_by_key_and_salt_and_server():
    ours = Namespaces()
    pairs = [(None, None), ("a", None), ("b", None), (None, "a"), ("a", "b"), ('a", "b', None)]
    names = [ours.of(*pair) for pair in pairs]
    assert len(set(names)) == len(pairs)
    assert names == [ours.of(*pair) for pair in pairs]
    assert Namespaces().of("a", None) != ours.of("a", None)


def test_names_outlive_a_server_in_the_folder_of_its_states_as_long_as_the_keys_stay_the_same(tmp_path: Path):
    folder, keys = tmp_path / "spill", tmp_path / "keys"
    keys.write_text("ada: one\n")
    first = Namespaces(folder, keys).of("ada", None)
    assert Namespaces(folder, keys).of("ada", None) == first
    assert Namespaces(tmp_path / "other", keys).of("ada", None) != first
    assert (folder.stat().st_mode & 0o777, (folder / "secret").stat().st_mode & 0o777) == (0o700, 0o600)
    keys.write_text("ada: two\n")
    assert Namespaces(folder, keys).of("ada", None) != first, "the label may be somebody else's now"
    (folder / "secret").write_bytes(b"")
    assert Namespaces(folder, None).of("ada", None) == Namespaces(folder, None).of("ada", None), "a broken secret is made again"
    with pytest.raises(NamespaceError, match=r"keys/spill: Not a directory; needed: a folder this user may write to"):
        Namespaces(keys / "spill", None)
