"""Launches whose shape may be chosen: the default beside each kernel, or what a launch table says. Knows no kernel and no file.

exact: a search space holds only what leaves every sum in its order, so no choice changes a bit; the tuner compares before it times.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Case = tuple[int | str, ...]
Configuration = Mapping[str, int]


@dataclass(eq=False, slots=True)
class Tuned:
    """A kernel whose configurations are the points of `space`. `asked` are the cases launched so far with their defaults."""

    name: str
    source: Path
    space: Mapping[str, tuple[int, ...]]
    asked: dict[Case, Configuration] = field(default_factory=dict)
    chosen: dict[Case, Configuration] = field(default_factory=dict)

    def __post_init__(self) -> None:
        KERNELS[self.name] = self

    def configuration(self, case: Case, default: Configuration) -> Configuration:
        """What a launch of `case` runs with."""
        self.asked.setdefault(case, default)
        return self.chosen.get(case, default)

    @property
    def digest(self) -> str:
        """16 hex digits over the source, its headers and the space: what a measurement holds for."""
        told = hashlib.sha256(repr(sorted(self.space.items())).encode())
        for path in (self.source, Path(__file__).with_name("device.cuh"), *sorted(self.source.parent.glob("*.cuh"))):
            told.update(path.read_bytes())
        return told.hexdigest()[:16]

    def refusal(self, source: str, configuration: Configuration) -> str:
        """Why this kernel does not take a configuration that was measured with `source`; empty if it does."""
        outside = [f"{name}={value}" for name, value in configuration.items() if value not in self.space.get(name, ())]
        missing = sorted(self.space.keys() - configuration.keys())
        if source != self.digest:
            return "its source is another one now"
        return f"outside its space: {', '.join(outside + missing)}" if outside or missing else ""


KERNELS: dict[str, Tuned] = {}
