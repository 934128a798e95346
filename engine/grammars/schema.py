"""A client's JSON Schema as one that a grammar enforces in full, or a refusal that names keyword and place. Knows no tokens.

The result may admit less than the schema (a closed object where none is asked for, patterns from end to end), never anything else.
"""

import json
from collections.abc import Callable
from typing import Any

from grammars.keywords import (
    ASSERTIONS,
    COUNTS,
    KINDS,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_SCHEMAS,
    OF_KIND,
    UNENFORCED,
    Schema,
    SchemaError,
    count,
    kinds_of,
    listed,
    listed_words,
    number_part,
    refuse,
    spread,
    string_part,
)


def enforceable(schema: Any, where: str) -> Schema:
    """`schema`, which stands in the request at `where`, in words a grammar enforces in full. Raises SchemaError."""
    if len(json.dumps(schema)) > MAX_BYTES:
        raise SchemaError(f"`{where}` has more than {MAX_BYTES} bytes of JSON; needed: a smaller schema")
    try:
        return _Reader(schema, where).read()
    except (TypeError, AttributeError, OverflowError):  # a keyword's value is of a kind nobody looked for
        raise SchemaError(f"`{where}` has a keyword with a value of another type than it takes; needed: a JSON Schema") from None


class _Reader:
    """Every part of a schema that is referred to becomes one of the result's `$defs`."""

    def __init__(self, root: Any, where: str) -> None:
        self._root, self._where = root, where
        self._names: dict[str, str] = {}
        self._waiting: list[str] = []
        self._count = 0

    def read(self) -> Schema:
        found = self._schema(self._root, self._where)
        parts: dict[str, Schema] = {}
        while self._waiting:
            reference = self._waiting.pop()
            parts[self._names[reference]] = self._schema(self._target(reference, self._where), f"{self._where}{reference[1:]}")
        for name in sorted(set(parts) - _ending(parts)):
            reference = next(reference for reference, known in self._names.items() if known == name)
            refuse("$ref", f"{self._where}{reference[1:]}", "needs itself inside every value, so no value ever ends")
        return found | ({"$defs": parts} if parts else {})

    def _schema(self, value: Any, path: str, depth: int = 0) -> Schema:
        self._count += 1
        if self._count > MAX_SCHEMAS or depth > MAX_DEPTH:
            raise SchemaError(f"`{path}`: the schema has more than {MAX_SCHEMAS} parts or {MAX_DEPTH} levels; needed: a smaller one")
        if value is True:
            return {}
        if not isinstance(value, dict):
            raise SchemaError(f"`{path}` is {'false, which admits no value' if value is False else 'no schema'}; needed: an object")
        said = self._assertions(value, path)
        if "allOf" in said:
            said = self._all_of(said, path, depth)
        if "$ref" in said:
            return self._reference(said, path)
        if "enum" in said or "const" in said:
            return listed(said, path)
        if "anyOf" in said or "oneOf" in said:
            return self._one_of(said, path, depth)
        kinds = kinds_of(said, path)
        found = [self._of_kind(kind, said, path, depth) for kind in kinds]
        return found[0] if len(found) == 1 else {"anyOf": found} if found else {}

    def _assertions(self, value: Schema, path: str) -> Schema:
        """What a schema demands; words that demand nothing are left out. Raises SchemaError for demands no grammar knows."""
        for word, nothing in UNENFORCED.items():
            if word in value and (type(value[word]) is not type(nothing) or value[word] != nothing):
                refuse(word, path, "cannot be enforced by a grammar")
        return {word: item for word, item in value.items() if word in ASSERTIONS}

    def _target(self, reference: str, path: str) -> Any:
        found: Any = self._root
        for step in reference.split("/")[1:] if reference != "#" else ():
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            else:
                refuse("$ref", path, "points at nothing in this schema")
        return found

    def _reference(self, said: Schema, path: str) -> Schema:
        if others := sorted(set(said) - {"$ref"}):
            refuse(others[0], path, "stands beside `$ref`; put both into one schema")
        reference = self._local(said["$ref"], path)
        if reference not in self._names:
            self._target(reference, path)
            self._names[reference] = f"part{len(self._names)}"
            self._waiting.append(reference)
        return {"$ref": f"#/$defs/{self._names[reference]}"}

    def _local(self, reference: Any, path: str) -> str:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            refuse("$ref", path, "is no path inside this schema, such as #/$defs/name")
        return reference

    def _resolved(self, value: Any, path: str) -> Schema:
        """A branch's own demands, through references."""
        for _ in range(MAX_DEPTH):
            if not isinstance(value, dict):
                raise SchemaError(f"`{path}` holds a branch that is no object; needed: schemas")
            said = self._assertions(value, path)
            if "$ref" not in said or len(said) > 1:
                return said
            value = self._target(self._local(said["$ref"], path), path)
        raise SchemaError(f"`$ref` at `{path}` leads round in a circle; needed: one that ends at a schema")

    def _branches(self, said: Schema, word: str, path: str) -> list[Any]:
        if not isinstance(said[word], list) or not said[word]:
            refuse(word, path, "needs to be a list of schemas")
        return said[word]

    def _all_of(self, said: Schema, path: str, depth: int) -> Schema:
        base = {word: item for word, item in said.items() if word != "allOf"}
        parts = self._branches(said, "allOf", path)
        if not base and len(parts) == 1 and isinstance(parts[0], dict):
            base = self._assertions(parts[0], path)
        else:
            for at, part in enumerate(parts):
                base = _merged(base, self._resolved(part, f"{path}.allOf[{at}]"), f"{path}.allOf[{at}]")
        if "allOf" in base:
            if depth >= MAX_DEPTH:
                refuse("allOf", path, "is nested too deeply")
            return self._all_of(base, path, depth + 1)
        return base

    def _one_of(self, said: Schema, path: str, depth: int) -> Schema:
        word = "oneOf" if "oneOf" in said else "anyOf"
        base = {name: item for name, item in said.items() if name != word}
        if "anyOf" in base:
            refuse("anyOf", path, "stands beside `oneOf`")
        parts = self._branches(said, word, path)
        places = [f"{path}.{word}[{at}]" for at in range(len(parts))]
        if base:
            parts = [_merged(base, self._resolved(part, place), place) for part, place in zip(parts, places, strict=True)]
        if word == "oneOf":
            self._check_apart([self._resolved(part, place) for part, place in zip(parts, places, strict=True)], path)
        return {"anyOf": [self._schema(part, place, depth + 1) for part, place in zip(parts, places, strict=True)]}

    def _check_apart(self, branches: list[Schema], path: str) -> None:
        """`oneOf` is enforced as `anyOf`, which is the same if no value fits two branches: other types, or other required constants."""
        for at, one in enumerate(branches):
            for other in branches[at + 1 :]:
                if not self._are_apart(one, other, path):
                    refuse("oneOf", path, "has branches that may both fit; needed: other types, a required constant each, or anyOf")

    def _are_apart(self, one: Schema, other: Schema, path: str) -> bool:
        first, second = listed_words(one), listed_words(other)
        if first is not None and second is not None:
            return not first & second
        kinds = [spread(kinds_of(said, path) or list(KINDS)) for said in (one, other)]
        if not kinds[0] & kinds[1]:
            return True
        if kinds[0] & kinds[1] != {"object"} or not all(isinstance(said.get("properties"), dict) for said in (one, other)):
            return False
        shared = set(one.get("required") or ()) & set(other.get("required") or ()) & set(one["properties"]) & set(other["properties"])
        pairs = [[listed_words(self._resolved(said["properties"][key], path)) for said in (one, other)] for key in shared]
        return any(left is not None and right is not None and not left & right for left, right in pairs)

    def _of_kind(self, kind: str, said: Schema, path: str, depth: int) -> Schema:
        words = OF_KIND.get("number" if kind == "integer" else kind, ())
        own = {word: said[word] for word in words if word in said}
        for word, most in COUNTS.items():
            if word in own:
                own[word] = count(own[word], most, word, path)
        readers: dict[str, Callable[[Schema, str, int], Schema]] = {"object": self._object, "array": self._array}
        if kind in readers:
            return {"type": kind} | readers[kind](own, path, depth + 1)
        if kind == "string":
            return {"type": kind} | string_part(own, path)
        return {"type": kind} | (number_part(own, kind, path) if own else {})

    def _object(self, own: Schema, path: str, depth: int) -> Schema:
        properties, required, more = own.get("properties", {}), own.get("required", []), own.get("additionalProperties")
        if not isinstance(properties, dict):
            refuse("properties", path, "is no object of schemas")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            refuse("required", path, "is no list of names")
        declared = dict(properties)
        for name in required:
            if name not in declared:
                if more is False:
                    refuse("required", path, "names a property that `additionalProperties` forbids")
                declared[name] = True if more is None else more
        if False in [value for value in declared.values() if isinstance(value, bool)]:
            if more not in (None, False) or any(declared.get(name) is False for name in required):
                refuse("properties", path, "forbids one by false; leave it out and close the object")
            declared = {name: value for name, value in declared.items() if value is not False}
        found: Schema = {name: own[name] for name in ("minProperties", "maxProperties") if name in own}
        if declared:
            found["properties"] = {name: self._schema(part, f"{path}.properties.{name}", depth) for name, part in declared.items()}
            found["required"] = [name for name in declared if name in required]
        is_open = more is not False if not declared else more not in (None, False)
        if is_open and found.get("minProperties", 0) > len(set(required)):
            refuse("minProperties", path, "cannot be enforced in an object with additional properties, whose names may repeat")
        if found.get("minProperties", 0) <= len(set(required)):
            found.pop("minProperties", None)
        elif (not is_open and found["minProperties"] > len(declared)) or found.get("maxProperties", MAX_ITEMS) < found["minProperties"]:
            refuse("minProperties", path, "is more than the object can have")
        if found.get("maxProperties", MAX_ITEMS) < len(set(required)):
            refuse("maxProperties", path, "is less than `required` needs")
        more = True if more is None else more
        return found | {"additionalProperties": self._schema(more, f"{path}.additionalProperties", depth) if is_open else False}

    def _array(self, own: Schema, path: str, depth: int) -> Schema:
        first, rest = own.get("prefixItems", []), own.get("items", True)
        if isinstance(rest, list):
            first, rest = rest, own.get("additionalItems", True)
        if not isinstance(first, list):
            refuse("prefixItems", path, "is no list of schemas")
        found: Schema = {word: own[word] for word in ("minItems", "maxItems") if word in own}
        least = found.get("minItems", 0)
        if least > found.get("maxItems", MAX_ITEMS) or (rest is False and least > len(first)):
            refuse("minItems", path, "is more than the array can have")
        if first:
            found["prefixItems"] = [self._schema(part, f"{path}.prefixItems[{at}]", depth) for at, part in enumerate(first)]
        if rest is False and not first:
            return {"maxItems": 0}
        found["items"] = False if rest is False else self._schema(rest, f"{path}.items", depth)
        return found


def _merged(base: Schema, more: Schema, path: str) -> Schema:
    """Both demands in one. Raises SchemaError where that takes more than putting them side by side."""
    found = dict(base)
    for one, other in ((base, more), (more, base)):
        if one.get("additionalProperties", True) is not True and set(other.get("properties") or ()) - set(one.get("properties") or ()):
            refuse("additionalProperties", path, "closes an object that another schema gives more properties")
        if "items" in one and "prefixItems" in other and one.get("prefixItems") != other["prefixItems"]:
            refuse("items", path, "speaks of items for which another schema has `prefixItems`")
    for word, value in more.items():
        if word not in found or found[word] == value:
            found[word] = value
        elif word == "required":
            found[word] = list(dict.fromkeys([*found[word], *value]))
        elif word == "properties" and all(found[word].get(key, part) == part for key, part in value.items()):
            found[word] = found[word] | value
        elif word == "type":
            kinds = [kinds_of({"type": kind}, path) for kind in (found[word], value)]
            shared = [kind for kind in kinds[0] if kind in kinds[1] or (kind == "integer" and "number" in kinds[1])]
            shared += [kind for kind in kinds[1] if kind == "integer" and "number" in kinds[0] and kind not in shared]
            if not shared:
                refuse(word, path, "contradicts another schema that applies to the same value")
            found[word] = shared
        else:
            refuse(word, path, "says something else than another schema that applies to the same value")
    return found


def _ending(parts: dict[str, Schema]) -> set[str]:
    """Names of parts that some finite value fits."""
    known: set[str] = set()
    while more := {name for name, part in parts.items() if name not in known and _ends(part, known)}:
        known |= more
    return known


def _ends(part: Schema, known: set[str]) -> bool:
    if "$ref" in part:
        return part["$ref"].removeprefix("#/$defs/") in known
    if "anyOf" in part:
        return any(_ends(branch, known) for branch in part["anyOf"])
    if part.get("type") == "object":
        return all(_ends(part["properties"][name], known) for name in part.get("required", ()))
    if part.get("type") == "array" and part.get("minItems", 0):
        first = part.get("prefixItems", [])
        needed = [*first[: part["minItems"]], *([part["items"]] if part["minItems"] > len(first) else [])]
        return all(_ends(one, known) for one in needed)
    return True
