"""The tools a request offers: are they usable, and what type does an argument have. Knows JSON Schema as data, no tokens and no HTTP.

All walks over a client's schema are iterative and bounded, whatever it refers to.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from lockstep.text.errors import TextError

NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
MAX_TOOLS = 1024
MAX_DEPTH = 64
MAX_SCHEMA_VALUES = 100_000
# Schemas one argument's type may be looked up in. Real ones need a handful.
MAX_VISITS = 256

_ANY_OF = ("anyOf", "oneOf", "allOf")
_STRING, _NULL = "string", "null"
_SHAPES = {"properties": "object", "additionalProperties": "object", "items": "array", "prefixItems": "array"}

Schema = Mapping[str, Any]
Definition = dict[str, Any]


def check_tools(tools: Sequence[Any]) -> None:
    """Raise TextError for a list of tools of the OpenAI form that cannot be offered: shape, names, size, depth."""
    if len(tools) > MAX_TOOLS:
        raise TextError(f"at most {MAX_TOOLS} tools, not {len(tools)}")
    names: set[str] = set()
    for place, tool in enumerate(tools):
        name = _checked_name(tool, place)
        if name in names:
            raise TextError(f"every name once; tool {place} repeats {name}")
        names.add(name)
    _check_size(tools)


def _checked_name(tool: Any, place: int) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(function, dict) or tool.get("type", "function") != "function":
        raise TextError(f'tools of the form {{"type": "function", "function": {{"name": ...}}}}; tool {place} is not')
    name = function.get("name")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise TextError(f"names of 1 to 128 characters out of A-Z, a-z, 0-9, _ and -; tool {place} has another")
    if not isinstance(function.get("parameters") or {}, dict):
        raise TextError(f"`parameters` as a JSON schema, an object; tool {place} has something else")
    if not isinstance(function.get("description") or "", str):
        raise TextError(f"`description` as a string; tool {place} has something else")
    if not isinstance(function.get("strict"), bool | None) or (tool.get("strict") and not function.get("strict")):
        raise TextError(f"`strict` true or false, beside the name; tool {place} has it otherwise")
    return name


def _check_size(tools: Sequence[Any]) -> None:
    values = 0
    for depth, level in enumerate(_levels(list(tools))):
        values += len(level)
        if depth == MAX_DEPTH:
            raise TextError(f"schemas of at most {MAX_DEPTH} levels")
        if values > MAX_SCHEMA_VALUES:
            raise TextError(f"at most {MAX_SCHEMA_VALUES} values in all schemas together")


def _levels(value: Any) -> Iterator[list[Any]]:
    """A value's parts by depth, without recursion."""
    level = [value]
    while level:
        yield level
        holders = (part for part in level if isinstance(part, dict | list))
        level = [part for holder in holders for part in (holder.values() if isinstance(holder, dict) else holder)]


class Toolset:
    """Checked tools by name. A name that is not offered has no schema: its arguments are JSON where they parse, else text."""

    def __init__(self, tools: Sequence[Definition]) -> None:
        functions = [tool["function"] for tool in tools]
        self._parameters: dict[str, Schema] = {function["name"]: function.get("parameters") or {} for function in functions}

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def properties(self, name: str) -> dict[str, Any]:
        """Schemas of a tool's arguments by key, references at the top followed."""
        root = self._parameters.get(name, {})
        found: dict[str, Any] = {}
        for schema in _walk(root, root):
            if isinstance(properties := schema.get("properties"), dict):
                found = properties | found
        return found

    def needs_arguments(self, name: str) -> bool:
        """True if a call without arguments would miss a required one."""
        root = self._parameters.get(name, {})
        return any(schema.get("required") for schema in _walk(root, root))

    def split_head(self, text: str) -> tuple[str, str] | None:
        """A tool's name and one of its keys glued or spaced together, if there is exactly one way to read them."""
        readings = [(name, key) for name, key in self._heads(text) if key == text[len(name) :].strip()]
        return readings[0] if len(readings) == 1 else None

    def can_become_head(self, text: str) -> bool:
        """True if `text` begins a tool's name followed by one of its keys."""
        return any(key.startswith(text[len(name) :].strip()) for name, key in self._heads(text))

    def _heads(self, text: str) -> Iterator[tuple[str, str]]:
        for name in self._parameters:
            if text.startswith(name):
                yield from ((name, key) for key in self.properties(name))

    def may_be_text(self, name: str, key: str) -> bool:
        """True if an argument may be a string."""
        kinds, _ = self._kinds(name, key)
        return not kinds or _STRING in kinds

    def typed(self, name: str, key: str, raw: str) -> Any:
        """An argument's value as its schema says: a declared string as it stands, of a union the first type that fits, string last.

        Without a schema, or if no type fits: JSON where it parses, else the text.
        """
        kinds, words = self._kinds(name, key)
        if raw in words or kinds == [_STRING]:
            return raw
        try:
            value = strict_json(raw)
        except ValueError:
            return raw
        if any(_fits(value, kind) for kind in kinds if kind != _STRING) or _STRING not in kinds:
            return value
        return raw

    def _kinds(self, name: str, key: str) -> tuple[list[str], set[str]]:
        """Types an argument may have in the order of its schema, and the strings it enumerates. No types: anything."""
        root = self._parameters.get(name, {})
        schema = self.properties(name).get(key, root.get("additionalProperties"))
        kinds: dict[str, None] = {}
        words: set[str] = set()
        for part in _walk(schema, root):
            declared = part.get("type")
            listed = part["enum"] if isinstance(part.get("enum"), list) else [part["const"]] if "const" in part else []
            words.update(word for word in listed if isinstance(word, str))
            if declared:
                names = declared if isinstance(declared, list) else [declared]
            else:
                names = [_kind_of(value) for value in listed] or [kind for shape, kind in _SHAPES.items() if shape in part]
            kinds.update(dict.fromkeys(kind for kind in names if isinstance(kind, str)))
            if part.get("nullable") is True:
                kinds[_NULL] = None
        return list(kinds), words


def _walk(schema: Any, root: Schema) -> Iterator[Schema]:
    """A schema and what it stands for: `$ref` into `root` and the branches of unions, in order, each once."""
    seen: set[int] = set()
    left = [schema]
    while left and len(seen) < MAX_VISITS:
        part = left.pop(0)
        if not isinstance(part, dict) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        branches = [branch for word in _ANY_OF if isinstance(part.get(word), list) for branch in part[word][:MAX_VISITS]]
        left[:0] = [_target(part.get("$ref"), root), *branches]


def _target(reference: Any, root: Schema) -> Any:
    """What a local reference points at, or None."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in reference.split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return found


def _kind_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: _STRING, list: "array", dict: "object", type(None): _NULL}
    return names.get(type(value), _STRING)


def _fits(value: Any, kind: str) -> bool:
    found = _kind_of(value)
    return kind == found or (kind, found) == ("number", "integer") or (kind == "integer" and found == "number" and value.is_integer())


def strict_json(text: str) -> Any:
    """JSON that every reader accepts: finite numbers, whole characters, bounded depth. Raises ValueError for anything else."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if any(depth == MAX_DEPTH for depth, _ in enumerate(_levels(value))):
        raise ValueError("nested too deeply")
    json.dumps(value, ensure_ascii=False).encode("utf-8")
    return value


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is no finite number")
    return value
