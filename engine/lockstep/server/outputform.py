"""The fields that say what a reply has to look like: shapes that are served, one form out of them. Knows bounds, no tokens."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NoReturn

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from lockstep.grammar.formats import any_object, choice_form, grammar_form, json_form, regex_form
from lockstep.grammar.protocol import Form, GrammarError

_PLACE = 'a schema stands, with "strict", in {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}'
MAX_TEXT, MAX_CHOICES = 1 << 16, 1000
WORDS = ("json", "regex", "choice", "grammar", "json_object")
FIELDS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


def _needed(words: str) -> NoReturn:
    raise PydanticCustomError("needed", "{words}", {"words": words})


def _response_format(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("type") not in ("text", "json_object", "json_schema"):
        _needed('an object with the type "text", "json_object" or "json_schema"')
    known = {"type", "json_schema"} if value["type"] == "json_schema" else {"type"}
    if others := sorted(set(value) - known):
        _needed(f"nothing but {' and '.join(sorted(known))} at its top level, where {others[0][:40]} stands; {_PLACE}")
    if value["type"] == "json_schema":
        told = value.get("json_schema")
        if not isinstance(told, dict) or not isinstance(told.get("schema"), dict):
            _needed(_PLACE)
        if not isinstance(told.get("strict"), bool | None):
            _needed("`json_schema.strict` to be true or false")
        if others := sorted(set(told) - {"name", "description", "schema", "strict"}):
            _needed(f"name, description, schema and strict in `json_schema`, not {others[0][:40]}")
    return value


def _structured_outputs(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, dict):
        _needed(f"an object with one of {', '.join(WORDS)}")
    told = {word: item for word, item in value.items() if item is not None and (word, item) != ("disable_any_whitespace", False)}
    if others := sorted(set(told) - set(WORDS)):
        _needed(f"one of {', '.join(WORDS)}; {others[0][:40]} is not served")
    if len(told) != 1:
        _needed(f"exactly one of {', '.join(WORDS)}")
    word = next(iter(told))
    return {word: _CHECKS[word](told[word])}


def _json(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            _needed("a JSON Schema, as an object or as JSON text")
    if not isinstance(value, dict):
        _needed("a JSON Schema, as an object or as JSON text")
    return value


def _text(value: Any) -> Any:
    if value is not None and (not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT):
        _needed(f"a text of 1 to {MAX_TEXT} characters")
    return value


def _choice(value: Any) -> Any:
    if value is not None and (not isinstance(value, list) or not all(isinstance(item, str) for item in value)):
        _needed("a list of texts")
    if value is not None and (not 0 < len(value) <= MAX_CHOICES or "" in value):
        _needed(f"1 to {MAX_CHOICES} texts, none of them empty")
    return value


def _json_object(value: Any) -> Any:
    if value is not True:
        _needed("`json_object` to be true")
    return value


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "json": _json, "regex": _text, "choice": _choice, "grammar": _text, "json_object": _json_object,
}  # fmt: skip

ResponseFormat = Annotated[
    dict[str, Any] | None,
    BeforeValidator(_response_format),
    Field(description="text, json_object or json_schema. A schema is enforced in full, or refused by the keyword that cannot be."),
]
StructuredOutputs = Annotated[
    dict[str, Any] | None,
    BeforeValidator(_structured_outputs),
    Field(description=f"Exactly one of {', '.join(WORDS)}; `grammar` is EBNF with a rule `root`, `regex` matches from end to end."),
]
GuidedJson = Annotated[dict[str, Any] | None, BeforeValidator(lambda value: None if value is None else _json(value)),
                       Field(description="As `structured_outputs.json`.")]  # fmt: skip
GuidedText = Annotated[str | None, BeforeValidator(_text), Field(description="As in `structured_outputs`.")]
GuidedChoice = Annotated[list[str] | None, BeforeValidator(_choice), Field(description="As `structured_outputs.choice`.")]


def asked_form(fields: Mapping[str, Any]) -> tuple[Form, str] | None:
    """The form that the fields of `FIELDS` ask for, and the one that did; None for a reply of any form. Raises GrammarError."""
    asked = [(name, fields[name]) for name in FIELDS if fields.get(name) not in (None, {"type": "text"})]
    if len(asked) > 1:
        raise GrammarError(f"`{asked[0][0]}` and `{asked[1][0]}` both say what the reply has to look like; needed: one of them")
    if not asked:
        return None
    name, value = asked[0]
    if name == "response_format":
        schema = value["type"] == "json_schema" and value["json_schema"]["schema"]
        return (json_form(schema, f"{name}.json_schema.schema") if schema is not False else any_object()), name
    word, said = next(iter(value.items())) if name == "structured_outputs" else (name.removeprefix("guided_"), value)
    where = f"{name}.{word}" if name == "structured_outputs" else name
    makers: dict[str, Callable[[], Form]] = {
        "json": lambda: json_form(said, where),
        "regex": lambda: regex_form(said),
        "choice": lambda: choice_form(said),
        "grammar": lambda: grammar_form(said),
        "json_object": any_object,
    }
    return makers[word](), name
