"""What a reply may be made to look like: one tree of formats for each way of asking. Knows the words of the tree, no tokens."""

from collections.abc import Sequence
from typing import Any

from grammars.keywords import Schema, inside_json
from grammars.protocol import Form
from grammars.schema import enforceable

# Blanks between the parts of a JSON value: room for indentation, none for a model that likes newlines.
MAX_BLANKS = 32


def json_form(schema: Any, where: str) -> Form:
    """A JSON value of a schema that stands in the request at `where`. Raises SchemaError."""
    return plain_json(enforceable(schema, where))


def plain_json(schema: Schema) -> Form:
    """A JSON value of a schema in the words of `grammar.schema`."""
    return {"type": "json_schema", "json_schema": inside_json(schema), "max_whitespace_cnt": MAX_BLANKS}


def any_object() -> Form:
    """Some JSON object."""
    return plain_json({"type": "object", "additionalProperties": {}})


def regex_form(pattern: str) -> Form:
    """A text that matches `pattern` from end to end."""
    return {"type": "regex", "pattern": pattern}


def choice_form(texts: Sequence[str]) -> Form:
    """One of some texts."""
    return either([{"type": "const_string", "value": text} for text in texts])


def grammar_form(rules: str) -> Form:
    """A text of the rule `root` of a grammar in EBNF (`name ::= ...`)."""
    return {"type": "grammar", "grammar": rules}


def either(forms: Sequence[Form]) -> Form:
    """One of some forms."""
    return {"type": "or", "elements": list(forms)} if len(forms) != 1 else forms[0]


def sequence(forms: Sequence[Form]) -> Form:
    """Some forms one behind the other."""
    return {"type": "sequence", "elements": list(forms)} if len(forms) != 1 else forms[0]
