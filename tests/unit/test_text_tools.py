"""A reply's ids become calls, typed by the schemas of the tools; what is no call stays text, to the byte."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures.tool_replies import OFFERED, TOKENIZER, TOOLS, ids
from lockstep.text.errors import TextError
from lockstep.text.reply import Delta, ReplyText, joined
from lockstep.text.tools import Tools
from lockstep.text.toolset import MAX_DEPTH, MAX_SCHEMA_VALUES, MAX_TOOLS, Toolset, check_tools

CLOSE = "</think>"
NOW = "<tool_call>now</tool_call>"
WEATHER = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Prague</arg_value></tool_call>"


def read(
    rounds: list[list[int]], *, thinking: bool = False, cut: bool = False, parallel: bool = True, stops: tuple[str, ...] = ()
) -> tuple[Delta, ReplyText]:
    reply = ReplyText(TOKENIZER, stops, thinking, tools=Tools.of(TOKENIZER, OFFERED, parallel, "key"))
    return joined([*(reply.feed(tokens) for tokens in rounds), reply.finish(cut)]), reply


def called(text: str, **more: Any) -> tuple[list[tuple[str, Any]], str, str]:
    """Names and arguments of the calls, content, reasoning; of one round and of one token a round alike."""
    whole, _ = read([ids(text)], **more)
    stepwise, _ = read([[token] for token in ids(text)], **more)
    assert stepwise == whole
    return [(call.name, json.loads(call.arguments)) for call in whole.calls], whole.content, whole.reasoning


def pairs(name: str, **values: str) -> str:
    inside = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in values.items())
    return f"<tool_call>{name}{inside}</tool_call>"


CALLS: list[tuple[str, str, list[tuple[str, Any]], str]] = [
    ("no arguments", NOW, [("now", {})], ""),
    ("newlines between the parts", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Prague</arg_value>\n</tool_call>",
     [("get_weather", {"city": "Prague"})], ""),
    ("text before", "Let me see." + WEATHER, [("get_weather", {"city": "Prague"})], "Let me see."),
    ("blanks around", "\n\n" + WEATHER + "\n" + NOW + "\n", [("get_weather", {"city": "Prague"}), ("now", {})], ""),
    ("text behind", NOW + "\nDone.", [("now", {})], "\nDone."),
    ("a name that begins another's", pairs("get") + pairs("get_weather", city="x"), [("get", {}), ("get_weather", {"city": "x"})], ""),
    ("several of one tool", pairs("get_weather", city="a") + pairs("get_weather", city="b"),
     [("get_weather", {"city": "a"}), ("get_weather", {"city": "b"})], ""),
    ("a name that is not offered", pairs("get_wether", city="5"), [("get_wether", {"city": 5})], ""),
    ("first key without its opening tag", "<tool_call>get_weather\ncity</arg_key><arg_value>Rome</arg_value></tool_call>",
     [("get_weather", {"city": "Rome"})], ""),
    ("first key glued to the name", "<tool_call>get_weathercity</arg_key><arg_value>Rome</arg_value></tool_call>",
     [("get_weather", {"city": "Rome"})], ""),
    ("first key without tags",
     "<tool_call>get_weather\ncity<arg_value>Rome</arg_value></tool_call>",
     [("get_weather", {"city": "Rome"})], ""),
    ("later key without its opening tag",
     "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>days</arg_key><arg_value>3</arg_value></tool_call>",
     [("get_weather", {"city": "Rome", "days": 3})], ""),
    ("a key without its end tag", "<tool_call>get_weather<arg_key>city<arg_value>Rome</arg_value></tool_call>",
     [("get_weather", {"city": "Rome"})], ""),
    ("a value without its end tag", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</tool_call>",
     [("get_weather", {"city": "Rome"})], ""),
    ("a value without its end tag before a call", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</tool_call>" + NOW,
     [("get_weather", {"city": "Rome"}), ("now", {})], ""),
    ("no end tag at the end",
     "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>",
     [("get_weather", {"city": "Rome"})], ""),
    ("no end tag before a call", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>" + NOW,
     [("get_weather", {"city": "Rome"}), ("now", {})], ""),
    ("an offered name alone at the end", "<tool_call>now", [("now", {})], ""),
    ("JSON behind the name",
     '<tool_call>get_weather\n{"city": "Rome", "days": 3}\n</tool_call>',
     [("get_weather", {"city": "Rome", "days": 3})], ""),
    ("JSON alone",
     '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>',
     [("get_weather", {"city": "Rome"})], ""),
    ("JSON with a tag in a string",
     '<tool_call>get_weather{"city": "a</tool_call>\\"b"}</tool_call>',
     [("get_weather", {"city": 'a</tool_call>"b'})], ""),
    ("JSON without an end tag", '<tool_call>get_weather{"city": "Rome"}', [("get_weather", {"city": "Rome"})], ""),
    ("a tag mentioned before a call", "The <tool_call> tag:" + NOW, [("now", {})], "The <tool_call> tag:"),
    ("a tag twice", "<tool_call>" + NOW, [("now", {})], "<tool_call>"),
    ("tags in a string",
     pairs("get_weather", city="a<tool_call>b</arg_key> <think>c"),
     [("get_weather", {"city": "a<tool_call>b</arg_key> <think>c"})], ""),
    ("an end of value in a string", pairs("get_weather", city="a</arg_value> b</arg_value>c"),
     [("get_weather", {"city": "a</arg_value> b</arg_value>c"})], ""),
    ("an end of call in a string", pairs("get_weather", city="a</tool_call> b"), [("get_weather", {"city": "a</tool_call> b"})], ""),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected", "content"), [case[1:] for case in CALLS], ids=[case[0] for case in CALLS])
def test_what_is_a_call_is_delivered(text: str, expected: list[tuple[str, Any]], content: str) -> None:
    assert called(text) == (expected, content, "")


TEXTS = [
    "Use the `<tool_call>` tag.",
    "```\n<tool_call> name\n```",
    "A <tool_call> tag is used for calls.",
    "It ends with <tool_call>",
    "It ends with <tool_call>get_weather",
    "It ends with <tool_call>other",
    "</tool_call> alone, <arg_key> too",
    "<tool_call></tool_call>",
    "<tool_call>two words</tool_call>",
    "<tool_call>naïve</tool_call>",
    "<tool_call>" + "x" * 129 + "</tool_call>",
    "<tool_call>{ braces }</tool_call>",
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
    '<tool_call>get_weather{"city": NaN}</tool_call>',
    '<tool_call>get_weather{"city": "x"} and more</tool_call>',
    "<tool_call>get_weather<arg_key></arg_key><arg_value>x</arg_value></tool_call>",
    "<tool_call>get_weather<arg_key>city</arg_key>Rome</tool_call>",
    "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome",
    "<tool_call>get_weather<arg_key>city",
    "<tool_call>get_weather\nnothing</arg_key><arg_value>x</arg_value></tool_call>",
    "<tool_call>get_weather<arg_key>days</arg_key><arg_value>3</arg_value> junk</tool_call>",
    "\n\n",
    "  and blanks stay",
]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_no_call_stays_text_to_the_byte(text: str) -> None:
    assert called(text) == ([], text, "")


TYPED: list[tuple[str, str, Any]] = [
    ("text", "42", "42"),
    ("text", "true", "true"),
    ("text", ' two\nlines "and" \\n quotes ', ' two\nlines "and" \\n quotes '),
    ("text", "", ""),
    ("whole", "42", 42),
    ("whole", "4.0", 4.0),
    ("whole", "many", "many"),
    ("whole", "9" * 5000, "9" * 5000),
    ("real", "1e2", 100.0),
    ("real", "1e999", "1e999"),
    ("real", "NaN", "NaN"),
    ("flag", "true", True),
    ("flag", " false\n", False),
    ("list", '["a", 1]', ["a", 1]),
    ("thing", '{"b": {"c": null}}', {"b": {"c": None}}),
    ("thing", '{"b": "\\ud800"}', '{"b": "\\ud800"}'),
    ("thing", '{"b":' * 2000 + "1" + "}" * 2000, '{"b":' * 2000 + "1" + "}" * 2000),
    ("nothing", "null", None),
    ("maybe", "null", None),
    ("maybe", "nil", "nil"),
    ("listed", "7", 7),
    ("listed", "seven", "seven"),
    ("listed", "[7]", "[7]"),
    ("referred", "3", 3),
    ("looped", "3", 3),
    ("nullable", "null", None),
    ("word", "1", "1"),
    ("word", "2", 2),
    ("shaped", "[1]", [1]),
    ("free", "42", 42),
    ("free", "x", "x"),
    ("unheard_of", '{"a": 1}', {"a": 1}),
]


@pytest.mark.parametrize(("key", "raw", "expected"), TYPED)
def test_arguments_have_the_types_of_their_schema(key: str, raw: str, expected: Any) -> None:
    value = OFFERED.typed("typed", key, raw)
    assert (type(value), value) == (type(expected), expected)


@pytest.mark.parametrize("value", ["你好 🙂", 'a "b" \\n\n\\', "\u2028\x00", "<|user|>"])
def test_strings_are_byte_equal_and_serialised_once(value: str) -> None:
    text = ids("<tool_call>get_weather<arg_key>city</arg_key><arg_value>") + TOKENIZER.encode(value) + ids("</arg_value></tool_call>")
    whole, _ = read([text])
    assert whole.calls[0].arguments == json.dumps({"city": value}, ensure_ascii=False)


def test_spellings_of_tags_are_text_where_they_are_no_tags() -> None:
    whole, _ = read([TOKENIZER.encode(NOW)])
    assert (whole.content, whole.calls) == (NOW, ())


def test_control_tokens_never_appear_in_arguments() -> None:
    assert called("<tool_call>get_weather<arg_key>city</arg_key><arg_value>Ro<|assistant|>me</arg_value></tool_call>")[0] == [
        ("get_weather", {"city": "Rome"})
    ]


CUT = [
    ("<tool_call>", ([], "", "")),
    ("<tool_call>get_wea", ([], "", "")),
    ("Hm. <tool_call>get_weather<arg_key>city</arg_key><arg_value>Ro", ([], "Hm. ", "")),
    ("<tool_call>get_weather<arg_key>city</arg_key><arg_value>Rome</arg_value>", ([], "", "")),
    (NOW + "<tool_call>get_weather<arg_key>", ([("now", {})], "", "")),
]


@pytest.mark.parametrize(("text", "expected"), CUT)
def test_a_call_cut_by_the_limit_is_never_delivered(text: str, expected: Any) -> None:
    assert called(text, cut=True) == expected


def test_one_call_ends_a_reply_that_may_hold_one() -> None:
    whole, reply = read([ids(NOW + WEATHER)], parallel=False)
    assert [call.name for call in whole.calls] == ["now"]
    assert reply.has_ended
    assert reply.tokens == ids(NOW)
    assert called(WEATHER[: -len("</tool_call>")] + NOW, parallel=False)[0] == [("get_weather", {"city": "Prague"})]
    assert called(pairs("unknown"), parallel=False) == ([], pairs("unknown"), "")
    assert called("hm" + NOW + NOW, parallel=False, thinking=True)[0] == [("now", {})]


THOUGHTS = [
    ("a call instead of an answer", "hm" + NOW, ([("now", {})], "", "hm")),
    ("and blanks", "hm" + WEATHER + "\n" + NOW + "\n", ([("get_weather", {"city": "Prague"}), ("now", {})], "", "hm")),
    ("and a late close tag", "hm" + NOW + CLOSE + "\n", ([("now", {})], "", "hm")),
    ("no end tag", "hm<tool_call>now", ([("now", {})], "", "hm")),
    ("a call thought of", "I could " + NOW + " but no" + CLOSE + "Hi", ([], "Hi", "I could " + NOW + " but no")),
    ("a call thought of, then an answer", "hm" + NOW + CLOSE + "Hi", ([], "Hi", "hm" + NOW)),
    ("a call thought of, then called", "hm" + NOW + CLOSE + WEATHER, ([("get_weather", {"city": "Prague"})], "", "hm" + NOW)),
    ("half a call thought of", "hm<tool_call>get_weather<arg_key>ci" + CLOSE + NOW,
     ([("now", {})], "", "hm<tool_call>get_weather<arg_key>ci")),
    ("a tag thought of", "the <tool_call> tag" + CLOSE + "x", ([], "x", "the <tool_call> tag")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), [case[1:] for case in THOUGHTS], ids=[case[0] for case in THOUGHTS])
def test_calls_in_a_thought_count_only_if_the_reply_ends_on_them(text: str, expected: Any) -> None:
    assert called(text, thinking=True) == expected


def test_a_stop_string_matches_around_calls_and_not_in_them() -> None:
    text = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>END</arg_value></tool_call>a END b"
    assert called(text, stops=("END",))[:2] == ([("get_weather", {"city": "END"})], "a ")
    assert called("a <tool_call> END b", stops=("END",))[:2] == ([], "a <tool_call> ")
    assert called("a <tool_call>", stops=("_call>",))[:2] == ([], "a <tool")


def test_ids_of_calls_are_unique_in_a_reply_and_equal_when_it_is_repeated() -> None:
    first, second = read([ids(NOW + NOW)])[0].calls, read([ids(NOW + NOW)])[0].calls
    assert first == second
    assert [call.index for call in first] == [0, 1]
    assert first[0].id != first[1].id
    assert all(call.id.startswith("call_") for call in first)


SPELLINGS = ["<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", CLOSE, "<think>", "<|user|>"]
WORDS = ["get_weather", "get", "now", "city", "days", "3", "Rome", "\n", " ", "☃", "{", '{"city": "x"}', "END", " five", "prose "]
fragments = st.lists(
    st.sampled_from([NOW, WEATHER, WEATHER[:-12], *SPELLINGS, *SPELLINGS, *WORDS]).map(ids) | st.sampled_from([[200], [131], [2299]]),
    max_size=9,
).map(lambda lists: list(itertools.chain.from_iterable(lists)))


@given(fragments, st.sampled_from([(), ("END",), ("\n ", "five")]), st.booleans(), st.booleans(), st.booleans(), st.randoms())
@settings(max_examples=600)
def test_any_cut_into_rounds_gives_the_same_events(
    tokens: list[int], stops: tuple[str, ...], thinking: bool, cut: bool, parallel: bool, chance: random.Random
) -> None:
    def outcome(rounds: list[list[int]]) -> Any:
        whole, reply = read(rounds, thinking=thinking, cut=cut, parallel=parallel, stops=stops)
        return whole, reply.stopped, reply.tokens, reply.reasoning_tokens

    whole = outcome([tokens])
    assert outcome([[token] for token in tokens]) == whole
    places = [0, *(place for place in range(1, len(tokens)) if chance.random() < 0.4), len(tokens)]
    assert outcome([tokens[a:b] for a, b in itertools.pairwise(places)]) == whole


def test_every_single_way_of_cutting_a_short_reply_gives_the_same_events() -> None:
    tokens = ids("a" + CLOSE + "☃\n<tool_call>get<arg_key>b</arg_key><arg_value>1</arg_value></tool_call>")
    assert len(tokens) <= 16
    whole = read([tokens], thinking=True)[0]
    assert [call.name for call in whole.calls] == ["get"]
    for mask in range(1 << (len(tokens) - 1)):
        edges = [0, *(place + 1 for place in range(len(tokens) - 1) if mask >> place & 1), len(tokens)]
        assert read([tokens[a:b] for a, b in itertools.pairwise(edges)], thinking=True)[0] == whole


@given(fragments, st.booleans())
@settings(max_examples=300)
def test_without_a_call_no_byte_is_lost(tokens: list[int], thinking: bool) -> None:
    plain = ReplyText(TOKENIZER, (), thinking)
    expected = joined([plain.feed(tokens), plain.finish()])
    whole, _ = read([tokens], thinking=thinking)
    if not whole.calls and "</think>" not in whole.content and "<think>" not in whole.content:
        assert (whole.reasoning + whole.content).replace("<think>", "") == expected.reasoning + expected.content


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def tool(name: Any = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ([tool("a"), tool("a")], "repeats a"),
        ([tool("a b")], "128 characters"),
        ([tool("é")], "128 characters"),
        ([tool("")], "128 characters"),
        ([tool("x" * 129)], "128 characters"),
        ([tool(5)], "128 characters"),
        ([{"type": "function"}], "tool 0 is not"),
        ([{"type": "web_search"}], "tool 0 is not"),
        ([None], "tool 0 is not"),
        ([tool(parameters=[1])], "an object"),
        ([tool(description=1)], "a string"),
        ([tool(parameters=deep(MAX_DEPTH))], "levels"),
        ([tool(parameters=deep(50_000))], "levels"),
        ([tool(parameters={"enum": list(range(MAX_SCHEMA_VALUES))})], "values"),
        ([tool(f"f{number}") for number in range(MAX_TOOLS + 1)], "at most"),
    ],
)
def test_tools_that_cannot_be_offered_are_refused(tools: list[Any], words: str) -> None:
    with pytest.raises(TextError, match=words):
        check_tools(tools)


def test_the_tools_of_these_tests_can_be_offered() -> None:
    check_tools(TOOLS)
    assert not OFFERED.needs_arguments("now")
    assert OFFERED.needs_arguments("get_weather")


def test_a_schema_of_references_to_itself_has_an_end() -> None:
    branches = [{"$ref": "#/$defs/a"}] * 1000
    tools = Toolset([tool(parameters={"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": branches, "allOf": [{"$ref": "#/nowhere"}]}}})])
    assert tools.typed("f", "x", "1") == 1
    assert tools.properties("f") == {}
