"""The checkpoint's `generation_config.json`: default sampling and stop ids. Standard library only.

Knows nothing of what a request may override.
"""

from dataclasses import dataclass
from pathlib import Path

from lockstep.config.fields import Fields, read_object


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Published defaults. `temperature` 0 stands for `do_sample: false`; `top_p` 1.0 switches the cut off."""

    eos_token_ids: tuple[int, ...]
    temperature: float
    top_p: float


def read_generation_config(directory: Path) -> GenerationConfig:
    """Read `generation_config.json` of a checkpoint folder. Raises ConfigError naming field, found and needed.

    An absent `top_p` or `temperature` means that the cut is off, or temperature 1; an absent `do_sample` means true, as the
    published file has it. Its `top_k` is not read: the server has a default of its own.
    """
    fields = Fields(read_object(directory / "generation_config.json"), "generation_config.json")
    sampled = fields.boolean("do_sample", default=True)
    return GenerationConfig(
        eos_token_ids=fields.integers("eos_token_id"),
        temperature=fields.number("temperature", 0.0, 100.0, default=1.0) if sampled else 0.0,
        top_p=fields.number("top_p", 0.0, 1.0, default=1.0),
    )
