"""How many of a drafter's guesses are worth a row. Standard library only; nothing here can change a reply.

Words, with N drafts at most, P a probability and B a temperature:
    0, N             always N drafts, of any drafter
    cN:P             MTP: stop before the draft that takes the product of the chances under P; the first always stays
    ncN:P[:B]        the same; a chance is that of the score with the request's own noise, at temperature B (2 unless given)
    fN fcN:P fncN:P[:B]   the same three for the block drafter
    costN[:noisy[:B]]     any drafter: the depth with the most expected tokens a measured millisecond
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.core.errors import LockstepError

BLUR = 2.0
_WORDS = re.compile(r"(?P<family>f?)(?P<kind>cost|nc|c|)(?P<most>\d{1,2})(?P<rest>(?::[a-z0-9.]+){0,2})")
FORMS = "N, cN:P, ncN:P[:B], fN, fcN:P, fncN:P[:B] or costN[:noisy[:B]]"


class PolicyError(LockstepError):
    """A policy word that means nothing, or nothing to this drafter."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Up to `most` drafts. `floor` 0 cuts nothing; `noisy` chances include the request's noise, softened by `blur`."""

    most: int
    floor: float = 0.0
    noisy: bool = False
    blur: float = BLUR
    by_cost: bool = False

    def depth(self, chances: Sequence[float]) -> int:
        """How many drafts to keep. The first always stays."""
        product = 1.0
        for at, chance in enumerate(chances[: self.most]):
            product *= chance
            if at and product < self.floor:
                return at
        return min(self.most, len(chances))

    def goes_on(self, chances: Sequence[float]) -> bool:
        """True if a chain with these chances so far should draw one more."""
        return len(chances) < self.most and self.depth(chances) == len(chances)


def parse_policy(word: str, block: bool) -> Policy:
    """The policy of a word. `block` says whether the block drafter guesses, else a chain. Raises PolicyError."""
    found = _WORDS.fullmatch(word)
    if found is None:
        raise PolicyError(f"--draft-policy {word}; needed: {FORMS}")
    kind, most, rest = found["kind"], int(found["most"]), found["rest"].split(":")[1:]
    if (found["family"] or kind in ("c", "nc")) and block != bool(found["family"]):
        words = "fN, fcN:P and fncN:P[:B] belong to the block drafter, cN:P and ncN:P[:B] to MTP"
        raise PolicyError(f"--draft-policy {word}; {words}; needed: a word of the drafter in use")
    if kind == "cost":
        if rest[:1] not in ([], ["noisy"]):
            raise PolicyError(f"--draft-policy {word}; needed: {FORMS}")
        return Policy(most, noisy=bool(rest), blur=_number(word, rest[1], 1e3) if rest[1:] else BLUR, by_cost=True)
    if len(rest) not in {"": (0,), "c": (1,), "nc": (1, 2)}[kind]:
        raise PolicyError(f"--draft-policy {word}; needed: {FORMS}")
    floor = _number(word, rest[0], 1.0) if rest else 0.0
    return Policy(most, floor, kind == "nc", _number(word, rest[1], 1e3) if rest[1:] else BLUR)


def _number(word: str, text: str, highest: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value <= highest:
        raise PolicyError(f"--draft-policy {word}: {text}; needed: a number above 0, at most {highest:g}")
    return value
