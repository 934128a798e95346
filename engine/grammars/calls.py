"""Tool calls as a form: tags by their ids, names and keys as offered, values as their schemas say. Knows the dialect, no template.

A value stands as plain text if its schema is a string, as JSON otherwise, so that reading it back by type gives what the grammar meant.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grammars.formats import either, plain_json, sequence
from grammars.keywords import Schema, SchemaError
from grammars.protocol import Form
from grammars.schema import enforceable

_DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|1\d|2[0-8])"
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)"
_BYTE = r"(25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
# Formats as plain text, where the grammar library has no word for them.
TEXT_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,4}}",
    "email": rf"[A-Za-z0-9_+-]{{1,32}}(\.[A-Za-z0-9_+-]{{1,32}}){{0,3}}@{_LABEL}(\.{_LABEL}){{1,4}}",
}
_ANY_TEXT: Form = {"type": "any_text"}
_ANY_CHARACTER = r"[\0-\U0010ffff]"


@dataclass(frozen=True, slots=True)
class CallTags:
    """Ids of the tags around a call, its keys and its values."""

    call: int
    call_end: int
    key: int
    key_end: int
    value: int
    value_end: int


def calls_form(tools: Sequence[dict[str, Any]], tags: CallTags, many: bool, only: str | None = None) -> Form:
    """One call of a tool that is offered, or of the tool `only`; with `many` one or more of them. Raises SchemaError.

    A tool with `"strict": false` whose schema cannot be enforced takes any arguments.
    """
    bodies = [_body(tool, tags, f"tools[{at}]") for at, tool in enumerate(tools) if only in (None, tool["function"]["name"])]
    call = sequence([_tag(tags.call), either(bodies), _tag(tags.call_end)])
    return {"type": "plus", "content": call} if many else call


def free_calls_form(tools: Sequence[dict[str, Any]], tags: CallTags, many: bool) -> Form:
    """Any text, and in it calls of tools that are offered, at most one unless `many`; strict ones are held to their schemas.

    Raises SchemaError.
    """
    bodies = [_body(tool, tags, f"tools[{at}]", tool["function"].get("strict") is True) for at, tool in enumerate(tools)]
    call = {"type": "tag", "begin": _tag(tags.call), "content": either(bodies), "end": _tag(tags.call_end)}
    return {"type": "token_triggered_tags", "trigger_tokens": [tags.call], "tags": [call], "stop_after_first": not many}


def _body(tool: dict[str, Any], tags: CallTags, where: str, is_held: bool = True) -> Form:
    function = tool["function"]
    path, anything = f"{where}.function.parameters", [{"type": "star", "content": _pair(tags, _ANY_TEXT, _ANY_TEXT)}]
    try:
        arguments = _arguments(enforceable(function.get("parameters") or {}, path), tags, path) if is_held else anything
    except SchemaError as error:
        if function.get("strict") is not False:
            raise SchemaError(f'{error}; or "strict": false for the tool, to have its arguments unchecked') from None
        arguments = anything
    return sequence([_text(function["name"]), *arguments])


def _arguments(schema: Schema, tags: CallTags, path: str) -> list[Form]:
    parts = schema.get("$defs", {})
    found = _resolved(schema, parts)
    if "anyOf" in found:
        return [either([sequence([*_arguments({**part, "$defs": parts}, tags, path), _text("")]) for part in found["anyOf"]])]
    if found.get("type", "object") != "object" or "enum" in found:
        raise SchemaError(f"`{path}` is the schema of no object; needed: type object, as a call has named arguments")
    properties, required = found.get("properties", {}), found.get("required", [])
    if "minProperties" in found or found.get("maxProperties", len(properties)) < len(properties):
        raise SchemaError(f"`{path}` bounds the number of arguments; needed: `required` instead")
    forms = []
    for name, part in properties.items():
        if not name or name != name.strip():
            raise SchemaError(f"`{path}` names an argument {json.dumps(name)}; needed: names without blanks around them")
        pair = _pair(tags, _text(name), _value(part, parts, f"{path}.properties.{name}"))
        forms.append(pair if name in required else {"type": "optional", "content": pair})
    return forms


def _value(part: Schema, parts: dict[str, Schema], path: str) -> Form:
    found = _resolved(part, parts)
    branches = [_resolved(branch, parts) for branch in found.get("anyOf", [found])]
    strings = [branch for branch in branches if branch.get("type") == "string"]
    others = [branch for branch in branches if branch.get("type") != "string"]
    if not found or {} in branches:
        return _ANY_TEXT
    if strings and all(set(branch) == {"type"} and branch["type"] not in ("object", "array") for branch in branches):
        return _ANY_TEXT
    forms = [form for branch in others for form in _other(branch, parts, path)]
    # Text is told from JSON by type when it is read; beside bounded numbers or objects that would not always end well.
    if strings and all(branch in ({"type": "null"}, {"enum": [None]}) for branch in others):
        forms += [_string(branch, path) for branch in strings]
    return either(forms)


def _other(branch: Schema, parts: dict[str, Schema], path: str) -> list[Form]:
    if "anyOf" in branch:
        return [_value(branch, parts, path)]
    if "enum" in branch:
        return [_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)) for value in branch["enum"]]
    return [plain_json(branch | ({"$defs": parts} if parts else {}))]


def _string(branch: Schema, path: str) -> Form:
    if "pattern" in branch:
        return {"type": "regex", "pattern": branch["pattern"]}
    if "format" in branch:
        if branch["format"] not in TEXT_FORMATS:
            raise SchemaError(f"`format` at `{path}` is {branch['format']}; needed in arguments: one of {', '.join(sorted(TEXT_FORMATS))}")
        return {"type": "regex", "pattern": TEXT_FORMATS[branch["format"]]}
    least, most = branch.get("minLength", 0), branch.get("maxLength")
    if not least:
        return _ANY_TEXT if most is None else {"type": "any_text", "max_chars": most}
    return {"type": "grammar", "grammar": f"root ::= {_ANY_CHARACTER}{{{least},{'' if most is None else most}}}"}


def _resolved(part: Schema, parts: dict[str, Schema]) -> Schema:
    """What a reference stands for; the schema's own reader has seen that none leads round in a circle."""
    while "$ref" in part:
        part = parts[part["$ref"].removeprefix("#/$defs/")]
    return {word: value for word, value in part.items() if word != "$defs"}


def _pair(tags: CallTags, key: Form, value: Form) -> Form:
    return sequence([_tag(tags.key), key, _tag(tags.key_end), _tag(tags.value), value, _tag(tags.value_end)])


def _tag(token: int) -> Form:
    return {"type": "token", "token": token}


def _text(text: str) -> Form:
    return {"type": "const_string", "value": text}
