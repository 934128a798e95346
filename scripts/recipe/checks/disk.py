"""Is there space for what is missing, on each filesystem?"""

from collections.abc import Mapping
from dataclasses import dataclass

from recipe.adapters.kernel import Filesystem
from recipe.checks import Finding

GIB = 1 << 30


@dataclass(frozen=True)
class Want:
    """`what` is missing below `place` and takes `gib` GiB."""

    what: str
    place: str
    gib: int


def check(facts: Mapping[str, Filesystem], need: tuple[Want, ...]) -> Finding:
    """`facts`: the filesystem of each place in `need`. Wants on one filesystem add up."""
    short: list[str] = []
    asked: list[str] = []
    for device in dict.fromkeys(facts[want.place].device for want in need):
        wants = [want for want in need if facts[want.place].device == device]
        gib, free_gib = sum(want.gib for want in wants), facts[wants[0].place].free_bytes / GIB
        text = f"{gib} GiB for {', '.join(want.what for want in wants)} below {wants[0].place}"
        if free_gib < gib:
            short.append(f"{free_gib:.1f} GiB free")
            asked.append(text)
    if short:
        return Finding("E_DISK", "; ".join(short), "; ".join(asked))
    total = sum(want.gib for want in need)
    return Finding("I_DISK", f"{total} GiB for what is missing fit" if need else "nothing is missing")
