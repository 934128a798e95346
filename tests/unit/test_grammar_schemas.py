"""A schema is enforced in full or refused by the keyword that cannot be."""

from __future__ import annotations

import json
import os
import random
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from fixtures.fronts import TOKENIZER
from fixtures.schemas import backend, is_valid, schema_of, spell
from grammars.formats import any_object, json_form
from grammars.keywords import SchemaError
from grammars.protocol import GrammarError
from grammars.schema import enforceable

NODE = {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
LINKED = {"$ref": "#/$defs/node", "$defs": {"node": NODE | {"required": ["v", "next"]}}}

DRAFT7 = {"$schema": "http://json-schema.org/draft-07/schema#"}


def nested(levels: int) -> dict:
    return reduce(lambda inner, _: {"type": "array", "items": inner}, range(levels), {"type": "null"})


REFUSED = {
    "multipleOf": ({"type": "integer", "multipleOf": 5}, "multipleOf", "s"),
    "uniqueItems": ({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems", "s.properties.a"),
    "contains": ({"type": "array", "contains": {"type": "string"}}, "contains", "s"),
    "minContains": ({"type": "array", "items": {"type": "array", "minContains": 2}}, "minContains", "s.items"),
    "not": ({"not": {"type": "string"}}, "not", "s"),
    "if": ({"type": "object", "if": {}, "then": {}}, "if", "s"),
    "dependentRequired": ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired", "s"),
    "propertyNames": ({"type": "object", "propertyNames": {"pattern": "^x"}}, "propertyNames", "s"),
    "patternProperties": ({"type": "object", "patternProperties": {"^x": {}}}, "patternProperties", "s"),
    "unevaluatedProperties": ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties", "s"),
    "behind a reference": ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "uniqueItems": True}}}, "uniqueItems", "s/$defs/a"),
    "format nobody knows": ({"type": "string", "format": "regex"}, "format", "s"),
    "pattern with a length": ({"type": "string", "pattern": "a+", "maxLength": 3}, "pattern", "s"),
    "oneOf that overlaps": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf", "s"),
    "a reference to elsewhere": ({"$ref": "https://example.test/schema"}, "$ref", "s"),
    "a reference to nothing": ({"$ref": "#/$defs/none"}, "$ref", "s"),
    "a value that never ends": (
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "required": ["a"]}}},
        "$ref",
        "s/$defs/a",
    ),
    "no value at all": ({"type": "integer", "minimum": 5, "maximum": 4}, "minimum", "s"),
    "more items than there can be": ({"type": "array", "minItems": 3, "maxItems": 2}, "minItems", "s"),
    "a count too large": ({"type": "array", "maxItems": 10**9}, "maxItems", "s"),
    "names that may repeat": ({"type": "object", "additionalProperties": {}, "minProperties": 2}, "minProperties", "s"),
    "a required name in a closed object": ({"type": "object", "required": ["a"], "additionalProperties": False}, "required", "s"),
    "enum without its type": ({"type": "string", "enum": [1, 2]}, "enum", "s"),
    "nullable": ({"type": "string", "nullable": True}, "nullable", "s"),
    "a type nobody knows": ({"type": "text"}, "type", "s"),
}


@pytest.mark.parametrize(("schema", "word", "place"), REFUSED.values(), ids=REFUSED)
def test_a_keyword_that_cannot_be_enforced_is_refused_with_its_place(schema: dict, word: str, place: str):
    with pytest.raises(SchemaError) as refusal:
        enforceable(schema, "s")
    assert f"`{word}` at `{place}`" in str(refusal.value)


@pytest.mark.parametrize("neutral", [{"uniqueItems": False}, {"patternProperties": {}}, {"nullable": False}, {"multipleOf": 1}])
def test_a_value_that_asks_for_nothing_is_taken(neutral: dict):
    assert enforceable({"type": "integer"} | neutral, "s") == {"type": "integer"}


ENFORCED = {
    "linked list": (LINKED, '{"v": 1, "next": {"v": 2, "next": null}}', '{"v": 1}'),
    "array of objects": ({"type": "array", "items": NODE | {"properties": {"v": {"type": "integer"}}}}, '[{"v": 1}]', '[{"v": "1"}]'),
    "implied type": ({"properties": {"a": {"minLength": 2}}}, '{"a": "xy"}', '{"a": "x"}'),
    "required beyond properties": ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, '{"b": 1}', '{"a": 1}'),
    "allOf of two": (
        {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}}, {"properties": {"b": {}}, "required": ["a", "b"]}]},
        '{"a": 1, "b": []}',
        '{"a": 1}',
    ),
    "anyOf beside properties": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        '{"b": 1}',
        "{}",
    ),
    "oneOf by a constant": (
        {"oneOf": [{"type": "object", "properties": {"k": {"const": key}, "v": {"type": kind}}, "required": ["k", "v"]}
                   for key, kind in (("n", "integer"), ("s", "string"))]},
        '{"k": "n", "v": 1}',
        '{"k": "n", "v": "1"}',
    ),
    "escaped pointer": ({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "boolean"}}}, "true", "1"),
    "tuple of older drafts": (DRAFT7 | {"type": "array", "items": [{"type": "integer"}], "additionalItems": False}, "[1]", '["a"]'),
    "integer bounds given as numbers": ({"type": "integer", "exclusiveMinimum": 1.5, "maximum": 2.9}, "2", "3"),
    "enum of one type": ({"type": "string", "enum": ["a", 1]}, '"a"', "1"),
    "sixty levels": (nested(60), "[" * 60 + "null" + "]" * 60, "[]x"),
}  # fmt: skip


@pytest.mark.parametrize(("schema", "good", "bad"), ENFORCED.values(), ids=ENFORCED)
def test_what_is_enforced_takes_what_fits_and_nothing_else(schema: dict, good: str, bad: str):
    form = json_form(schema, "s")
    assert is_valid(schema, good)
    assert spell(form, good)
    assert not spell(form, bad)


@pytest.mark.parametrize("pattern", ['a"b', r"a\\\\b", r"[\\\\]", '["]', r"\n", r"[\t]", r"\x22", r"\u0022", "a\tb", r"\x0a", r"\u{22}"])
def test_a_pattern_that_asks_for_what_json_escapes_is_refused(pattern: str):
    with pytest.raises(SchemaError, match="`pattern` at `s`"):
        enforceable({"type": "string", "pattern": pattern}, "s")


@pytest.mark.parametrize("schema", [
    {"type": "string", "maxLength": 3}, {"type": "string", "minLength": 1}, {"type": "string", "pattern": r'[^"\\]*'}, {"type": "string"},
    {"type": "string", "pattern": r"\s.\W"}, {"type": "string", "pattern": "[ -~]+"}, {"type": "string", "pattern": r"\.\/\D"},
])  # fmt: skip
def test_texts_inside_json_hold_no_bare_control_character(schema: dict):
    matcher = backend().matcher(backend().compile(json_form(schema, "s")))
    assert matcher.accept(TOKENIZER.encode('"')[0])
    allowed = matcher.allowed()
    assert not [token for token in range(TOKENIZER.size) if allowed[token] and any(byte < 32 for byte in TOKENIZER.token_bytes(token))]


ODD = (5, -1, 1e999, 10**30, "x", None, True, [], [1], {}, {"a": 1}, [{}], [["a"]])


def test_a_schema_with_odd_values_anywhere_is_taken_or_refused_in_words():
    def spoil(part: Any, chance: random.Random) -> Any:
        if isinstance(part, dict) and part and chance.random() < 0.85:
            key = chance.choice(list(part))
            return part | {key: spoil(part[key], chance)}
        if isinstance(part, list) and part and chance.random() < 0.85:
            at = chance.randrange(len(part))
            return [*part[:at], spoil(part[at], chance), *part[at + 1 :]]
        return chance.choice(ODD)

    refused = 0
    for seed in range(3000):
        chance = random.Random(seed)
        try:
            enforceable(spoil(schema_of(seed % 40), chance), "s")
        except SchemaError:
            refused += 1
    assert 500 < refused < 2950


@pytest.mark.parametrize("schema", [{"type": "integer", "minimum": 10**30}, {"const": 10**30}, {"type": "number", "maximum": 1e300}])
def test_numbers_beyond_every_machine_word_are_enforced_or_refused(schema: dict):
    try:
        form = json_form(schema, "s")
        backend().compile(form)
    except GrammarError:
        return
    assert not spell(form, "1" if "maximum" not in schema else "1e301")


ROUNDED = [
    {"const": 2**63}, {"enum": [{"a": [-(2**63) - 1]}]}, {"type": "number", "minimum": 2**53 + 1}, {"type": "integer", "maximum": 1e19},
    {"type": "integer", "minimum": 2**63}, {"type": "number", "minimum": 10**400},
]  # fmt: skip


@pytest.mark.parametrize("schema", ROUNDED)
def test_numbers_that_the_library_would_round_are_refused_by_keyword_and_place(schema: dict):
    with pytest.raises(SchemaError, match=f"`{[*schema][-1]}` at `s`.*64 bits"):
        json_form(schema, "s")


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_the_last_numbers_of_64_bits_are_spelled_to_the_digit(number: int):
    for schema in ({"const": number}, {"type": "integer", "minimum": number, "maximum": number}):
        form = json_form(schema, "s")
        assert spell(form, str(number))
        assert not spell(form, str(number)[:-1])


def test_deep_and_large_schemas_are_refused_before_they_are_compiled():
    deep = nested(100)
    large = {"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(3000)}}
    long = {"enum": ["x" * 300_000]}
    for schema in (deep, large, long):
        with pytest.raises(SchemaError, match="needed: a smaller"):
            enforceable(schema, "s")


def test_blanks_between_tokens_are_bounded():
    form = any_object()
    assert spell(form, '{"a":' + " " * 32 + "1}")
    assert not spell(form, '{"a":' + " " * 33 + "1}")
    assert not spell(form, "\n{}")


def test_a_schema_out_of_a_seed_is_enforced_and_kept_in_words_of_its_own():
    for seed in range(60):
        schema = schema_of(seed)
        told = json.dumps(schema)
        enforceable(schema, "s")
        assert json.dumps(schema) == told, "reading changed the schema"


@pytest.mark.skipif("JSONSCHEMA_SUITE" not in os.environ, reason="set JSONSCHEMA_SUITE to a draft's folder of JSON Schema's own test suite")
def test_no_invalid_value_of_the_schema_languages_own_suite_is_taken():
    """The suite comes in jsonschema's source archive (`json/tests/draft2020-12`)."""
    taken = refused = checked = 0
    wrong = []
    for path in sorted(Path(os.environ["JSONSCHEMA_SUITE"]).glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            try:
                form = json_form(group["schema"], "s")
                backend().compile(form)
            except GrammarError:
                refused += 1
                continue
            taken += 1
            for case in group["tests"]:
                checked += 1
                if not case["valid"] and spell(form, json.dumps(case["data"], ensure_ascii=False)):
                    wrong.append((path.stem, group["description"], case["description"]))
    assert not wrong, wrong
    assert taken > 100 < refused, (taken, refused, checked)
