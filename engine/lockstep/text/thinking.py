"""Whether to think, and how hard: the client's words and the levels this model family knows. Knows no template."""

from dataclasses import dataclass

LEVELS = {"none": "off", "minimal": "low", "low": "low", "medium": "high", "high": "high", "xhigh": "max", "max": "max"}


@dataclass(frozen=True, slots=True)
class Thinking:
    """`effort` is a level of the template: low, high or max. It says nothing while `enabled` is false."""

    enabled: bool
    effort: str = "high"


def choose_thinking(default: Thinking, switch: bool | None, effort: str | None) -> Thinking:
    """The default, overridden by the client's effort word (`none` is off, any other is on), overridden by an explicit switch."""
    level = LEVELS[effort] if effort is not None else None
    enabled = default.enabled if level is None else level != "off"
    if switch is not None:
        enabled = switch
    return Thinking(enabled, level if level not in (None, "off") else default.effort)


def default_thinking(enabled: bool, effort: str) -> Thinking:
    """A server's own default. Effort `none` is off, whatever `enabled` says."""
    level = LEVELS[effort]
    return Thinking(enabled and level != "off", "high" if level == "off" else level)
