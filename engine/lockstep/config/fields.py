"""Typed access to one JSON object: a wrong or missing field names itself, what was found and what is needed.

Knows nothing of models. Standard library only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

Kind = TypeVar("Kind")


class ConfigError(ValueError):
    """A configuration file cannot be used. The message names the field, what was found and what was needed."""


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file. Raises ConfigError if the file is missing, is not UTF-8 JSON or holds no object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; a checkpoint folder needs {path.name}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ConfigError(f"{path}: not readable as UTF-8 JSON ({error}); download the file again") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: found a JSON {type(value).__name__}, needed an object")
    return value


@dataclass(frozen=True, slots=True)
class Within:
    """Bounds of a number, and what its absence means; without `default` it must be there."""

    low: float = 1
    high: float = 1 << 31
    default: float | None = None


Part = Annotated[float, Within(0.0, 1.0)]


class Fields:
    """One JSON object with the place it stands at (`where`, used in messages)."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def refuse(self, name: str, needed: str) -> ConfigError:
        """The error for field `name`, to be raised by the caller."""
        found = json.dumps(self.values[name], default=repr)[:120] if name in self.values else "nothing"
        return ConfigError(f"{self.where}.{name}: found {found}, needed {needed}")

    def has(self, name: str) -> bool:
        """True if the field is present and not null."""
        return self.values.get(name) is not None

    def integer(self, name: str, low: int = 1, high: int = 1 << 31, default: int | None = None) -> int:
        """An integer in low..high. Without `default` the field is required."""
        if default is not None and not self.has(name):
            return default
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(name, f"an integer from {low} to {high}")
        return value

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        """A finite number in low..high. Without `default` the field is required."""
        if default is not None and not self.has(name):
            return default
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or not low <= value <= high:
            raise self.refuse(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def read(self, kind: type[Kind], **known: Any) -> Kind:
        """`kind`, a dataclass: `known` and, by their names, the int and float fields, whose types may carry bounds (`Within`)."""
        for name, hint in get_type_hints(kind, include_extras=True).items():
            if name not in known:
                number, within = get_args(hint) or (hint, Within())
                read: Any = self.integer if number is int else self.number
                known[name] = read(name, within.low, within.high, within.default)
        return kind(**known)

    def numbers(self, name: str, count: int, low: float, high: float) -> tuple[float, ...]:
        """A list of exactly `count` finite numbers in low..high."""
        value = self.values.get(name)
        if not isinstance(value, list) or len(value) != count:
            raise self.refuse(name, f"a list of {count} numbers")
        return tuple(Fields({name: item}, self.where).number(name, low, high) for item in value)

    def boolean(self, name: str, default: bool | None = None) -> bool:
        """true or false. Without `default` the field is required."""
        if default is not None and not self.has(name):
            return default
        value = self.values.get(name)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def words(self, name: str, count: int, allowed: Iterable[str]) -> tuple[str, ...]:
        """A list of exactly `count` words out of `allowed`."""
        known = tuple(allowed)
        value = self.values.get(name)
        if not isinstance(value, list) or len(value) != count or any(word not in known for word in value):
            raise self.refuse(name, f"a list of {count} words out of {', '.join(known)}")
        return tuple(value)

    def integers(self, name: str, low: int = 0, high: int = 1 << 31) -> tuple[int, ...]:
        """A list of integers in low..high; a single integer counts as a list of one."""
        value = self.values.get(name)
        items: list[Any] = value if isinstance(value, list) else [value]
        if not items or any(isinstance(i, bool) or not isinstance(i, int) or not low <= i <= high for i in items):
            raise self.refuse(name, f"an integer or a list of integers from {low} to {high}")
        return tuple(items)

    def constant(self, name: str, only: Any, required: bool = False) -> None:
        """The engine implements one value of this field. Raises ConfigError if the file holds another."""
        if name not in self.values and not required:
            return
        if self.values.get(name) != only or isinstance(self.values.get(name), bool) != isinstance(only, bool):
            raise self.refuse(name, f"{json.dumps(only)} (this engine computes no other)")

    def inner(self, name: str) -> Fields:
        """A nested object. Raises ConfigError if it is missing."""
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self.refuse(name, "an object")
        return Fields(value, f"{self.where}.{name}")
