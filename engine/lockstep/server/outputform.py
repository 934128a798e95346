"""The fields that say what a reply has to look like: shapes that are served, one form out of them. Knows bounds, no tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from grammars.formats import any_object, choice_form, grammar_form, json_form, regex_form
from grammars.protocol import Form, GrammarError
from lockstep.text.toolset import strict_json

FIELDS = ("response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar")


def _schema(value: Any) -> Any:
    try:
        return strict_json(value) if isinstance(value, str) else value
    except ValueError:
        raise PydanticCustomError("needed", "a JSON Schema, as an object or as JSON text") from None


Schema = Annotated[dict[str, Any], BeforeValidator(_schema, json_schema_input_type=dict[str, Any] | str)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=1 << 16)]
Choice = Annotated[list[Text], Field(min_length=1, max_length=1000)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class NamedSchema(_Strict):
    """A schema is enforced in full, whether `strict` or not, or refused by the keyword that cannot be."""

    name: str | None = None
    description: str | None = None
    body: dict[str, Any] = Field(alias="schema")
    strict: StrictBool | None = None


class ResponseFormat(_Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError("needed", "`json_schema` with a schema beside the type json_schema, and beside no other")
        return self


class StructuredOutputs(_Strict):
    """Exactly one of its fields. `grammar` is EBNF with a rule `root`, `regex` matches from end to end."""

    schema_: Schema | None = Field(None, alias="json")
    regex: Text | None = None
    choice: Choice | None = None
    grammar: Text | None = None
    json_object: Literal[True] | None = None
    disable_any_whitespace: Literal[False] | None = None

    @property
    def asked(self) -> list[tuple[str, Any]]:
        """Fields that ask for something."""
        told = {"json": self.schema_, "regex": self.regex, "choice": self.choice, "grammar": self.grammar, "json_object": self.json_object}
        return [(word, value) for word, value in told.items() if value is not None]

    @model_validator(mode="after")
    def _asks_for_one_thing(self) -> StructuredOutputs:
        if len(self.asked) != 1:
            raise PydanticCustomError("needed", "exactly one of json, regex, choice, grammar and json_object")
        return self


def asked_form(fields: Mapping[str, Any]) -> tuple[Form, str] | None:
    """The form that the fields of `FIELDS` ask for, and the one that did; None for a reply of any form. Raises GrammarError."""
    asked = [(name, fields[name]) for name in FIELDS if fields.get(name) is not None and getattr(fields[name], "type", "") != "text"]
    if len(asked) > 1:
        raise GrammarError(f"`{asked[0][0]}` and `{asked[1][0]}` both say what the reply has to look like; needed: one of them")
    if not asked:
        return None
    name, value = asked[0]
    if isinstance(value, ResponseFormat):
        named = value.json_schema
        return (any_object() if named is None else json_form(named.body, f"{name}.json_schema.schema")), name
    word, said = value.asked[0] if isinstance(value, StructuredOutputs) else (name.removeprefix("guided_"), value)
    where = f"{name}.{word}" if isinstance(value, StructuredOutputs) else name
    makers: dict[str, Callable[[], Form]] = {
        "json": lambda: json_form(said, where),
        "regex": lambda: regex_form(said),
        "choice": lambda: choice_form(said),
        "grammar": lambda: grammar_form(said),
        "json_object": any_object,
    }
    return makers[word](), name
