"""JSON Schema's keywords: which a grammar enforces, which it cannot, and what those of numbers, texts and lists of values say.

Knows one schema at a time, nothing of how schemas hold each other.
"""

import json
import math
import re
from typing import Any, NoReturn

from grammars.protocol import GrammarError

MAX_SCHEMAS = 2000
MAX_DEPTH = 64
MAX_BYTES = 1 << 18
# A repetition becomes states of an automaton; a count above these is refused before it takes the compiler's memory.
MAX_ITEMS, MAX_LENGTH = 1000, 10_000
FORMATS = frozenset(
    {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uri-reference", "uri-template", "uuid"}
    | {"json-pointer", "relative-json-pointer"}
)

_INT64_END = 1 << 63
KINDS = ("object", "array", "string", "number", "integer", "boolean", "null")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
OF_KIND = {
    "object": ("properties", "required", "additionalProperties", "minProperties", "maxProperties"),
    "array": ("items", "prefixItems", "additionalItems", "minItems", "maxItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "number": _BOUNDS,
}
ASSERTIONS = {word for words in OF_KIND.values() for word in words} | {"type", "enum", "const", "$ref", "anyOf", "oneOf", "allOf"}
# Values that ask for nothing.
UNENFORCED: dict[str, Any] = {
    "multipleOf": 1, "uniqueItems": False, "contains": None, "minContains": None, "maxContains": None, "not": {"not": {}}, "if": None,
    "then": None, "else": None, "dependentRequired": {}, "dependentSchemas": {}, "dependencies": {}, "propertyNames": True,
    "patternProperties": {}, "unevaluatedItems": True, "unevaluatedProperties": True, "$dynamicRef": None, "$recursiveRef": None,
    "nullable": False, "extends": None, "disallow": None, "divisibleBy": 1,
}  # fmt: skip
COUNTS = {"minItems": MAX_ITEMS, "maxItems": MAX_ITEMS, "minLength": MAX_LENGTH, "maxLength": MAX_LENGTH, "minProperties": MAX_ITEMS,
           "maxProperties": MAX_ITEMS}  # fmt: skip

# Characters that stand for themselves inside JSON's quotes, and ways to ask for others outside a class that excludes them.
_PLAIN = r'[^"\\\x00-\x1f]'
_NOT_THESE = re.compile(r"\[\^(?:\\.|[^\]\\])*\]")
_ESCAPED = re.compile(r'["\x00-\x1f]|\\[\\ntrfv0c]|\\x(?:[01]|22|5[cC])|\\u(?:\{|00(?:[01]|22|5[cC]))')

Schema = dict[str, Any]


class SchemaError(GrammarError):
    """A schema that cannot be enforced. The text names the keyword and where it stands."""


def refuse(word: str, path: str, why: str) -> NoReturn:
    raise SchemaError(f"`{word}` at `{path}` {why}; needed: a schema without it, or with what it says in other words")


def count(value: Any, most: int, word: str, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value) or value < 0:
        refuse(word, path, "is no whole number of 0 or more")
    if value > most:
        refuse(word, path, f"is more than {most}")
    return int(value)


def kinds_of(said: Schema, path: str) -> list[str]:
    """Types a value may have; none named and nothing demanded: no entry, which means any."""
    declared = said.get("type")
    if declared is None:
        return [kind for kind, words in OF_KIND.items() if any(word in said for word in words)]
    names = declared if isinstance(declared, list) else [declared]
    if not names or not all(isinstance(name, str) and name in KINDS for name in names):
        refuse("type", path, f"is none of {', '.join(KINDS)}")
    return [name for name in dict.fromkeys(names) if name != "integer" or "number" not in names]


def spread(kinds: list[str]) -> set[str]:
    return {*kinds, *(["integer"] if "number" in kinds else [])}


def kind_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", str: "string", list: "array", dict: "object", type(None): "null"}
    return names.get(type(value), "integer" if isinstance(value, float) and value.is_integer() else "number")


def values_of(said: Schema) -> list[Any] | None:
    listed = [said["const"]] if "const" in said else said.get("enum")
    return listed if isinstance(listed, list) else None


def listed_words(said: Schema) -> set[str] | None:
    """What a schema lists, each as canonical JSON; None if it lists nothing."""
    values = values_of(said)
    return None if values is None else {json.dumps(value, sort_keys=True) for value in values}


def listed(said: Schema, path: str) -> Schema:
    word = "const" if "const" in said else "enum"
    if others := sorted(set(said) - {"enum", "const", "type"}) + ["enum"] * ("const" in said and "enum" in said):
        refuse(others[0], path, f"stands beside `{word}`")
    kinds = spread(kinds_of(said, path) or list(KINDS))
    values = [value for value in values_of(said) or () if kind_of(value) in kinds]
    if not values:
        refuse(word, path, "lists no value of the demanded type")
    if any(map(exceeds_int64, values)):
        refuse(word, path, "holds a whole number of more than 64 bits")
    return {"enum": values}


def exceeds_int64(value: Any) -> bool:
    """True for whole numbers that the grammar library would round, also inside of lists and objects."""
    if isinstance(value, dict | list):
        return any(map(exceeds_int64, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -_INT64_END <= value < _INT64_END


def string_part(own: Schema, path: str) -> Schema:
    """What a schema says of texts."""
    if len(own) > 1 and set(own) != {"minLength", "maxLength"}:
        refuse(sorted(own)[-1], path, f"cannot be enforced together with `{sorted(own)[0]}`")
    if "pattern" in own:
        if not isinstance(own["pattern"], str) or len(own["pattern"]) > MAX_LENGTH:
            refuse("pattern", path, f"is no text of at most {MAX_LENGTH} characters")
        if _ESCAPED.search(_NOT_THESE.sub("", own["pattern"])):
            refuse("pattern", path, "names a quote, a backslash or a control character, which JSON writes as escapes")
    if "format" in own and own["format"] not in FORMATS:
        refuse("format", path, f"is none of {', '.join(sorted(FORMATS))}")
    if own.get("minLength", 0) > own.get("maxLength", MAX_LENGTH):
        refuse("minLength", path, "is more than `maxLength`")
    return own


def inside_json(part: Schema) -> Schema:
    """`part`, an enforceable schema, for texts between JSON's quotes: lengths as a pattern, for the library's let control characters in."""
    if part.get("type") == "string" and ("minLength" in part or "maxLength" in part):
        return {"type": "string", "pattern": f"{_PLAIN}{{{part.get('minLength', 0)},{part.get('maxLength', '')}}}"}
    found = dict(part)
    for word in ("properties", "$defs"):
        if word in part:
            found[word] = {name: inside_json(one) for name, one in part[word].items()}
    for word in ("anyOf", "prefixItems"):
        if word in part:
            found[word] = [inside_json(one) for one in part[word]]
    for word in ("items", "additionalProperties"):
        if isinstance(part.get(word), dict):
            found[word] = inside_json(part[word])
    return found


def number_part(own: Schema, kind: str, path: str) -> Schema:
    for word, value in own.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            refuse(word, path, "is no number")
        most = _INT64_END if kind == "integer" else math.inf
        if exceeds_int64(value) or (isinstance(value, float) and not abs(value) < most) or (kind == "number" and float(value) != value):
            refuse(word, path, "is no finite number of 64 bits")
    low = [(own[word], word) for word in ("minimum", "exclusiveMinimum") if word in own]
    high = [(own[word], word) for word in ("maximum", "exclusiveMaximum") if word in own]
    if kind == "integer":
        least = [math.ceil(value) + (word != "minimum" and value == math.ceil(value)) for value, word in low]
        most = [math.floor(value) - (word != "maximum" and value == math.floor(value)) for value, word in high]
        own = ({"minimum": max(least)} if least else {}) | ({"maximum": min(most)} if most else {})
        is_empty = bool(least and most) and max(least) > min(most)
    else:
        # Of two bounds on one side the tighter counts; "exclusive" sorts before "m" and is the tighter of equals.
        bounds = [max(low, key=lambda bound: (bound[0], bound[1][0] == "e"))] if low else []
        bounds += [min(high, key=lambda bound: (bound[0], bound[1][0] != "e"))] if high else []
        own = {word: value for value, word in bounds}
        is_empty = (
            len(bounds) == 2 and bounds[0][0] >= bounds[1][0] and not (bounds[0][0] == bounds[1][0] and set(own) == {"minimum", "maximum"})
        )
    if is_empty:
        refuse(next(iter(own)), path, "leaves no number between the bounds")
    return own
