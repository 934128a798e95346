"""The `config.json` of a DFlash2 drafter as a frozen dataclass. Standard library only.

Knows nothing of the target model beyond the widths it must share with it. Every field is required: a drafter read with a
guessed window, theta or tap list works, but drafts badly, and nothing else would show it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from lockstep.config.fields import ConfigError, Fields, Part, Within, read_object
from lockstep.config.model import TextConfig


@dataclass(frozen=True, slots=True)
class DrafterConfig:
    """A block drafter. `block_size` counts the pending row; `target_layer_ids` are 0-based trunk layers whose output is tapped.

    `sliding_window` counts positions, `conv_group_size` channels a group. `logit_softcap` 0 means none.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: Part
    rope_theta: float
    sliding_window: int
    block_size: Annotated[int, Within(2, 64)]
    target_layer_ids: tuple[int, ...]
    mask_token_id: int
    conv_kernel_size: Annotated[int, Within(1, 16)]
    conv_group_size: int
    selector_rank: int
    selector_top_k: int
    input_embedding_scale: Annotated[float, Within(0.0, 1e4, 1.0)]
    output_multiplier: Annotated[float, Within(0.0, 1e4, 1.0)]
    logit_softcap: float

    @property
    def drafts(self) -> int:
        """Tokens one block proposes: all rows but the pending one."""
        return self.block_size - 1


def read_drafter_config(directory: Path, target: TextConfig) -> DrafterConfig:
    """Read a drafter folder's `config.json` for a target. Raises ConfigError naming field, found and needed."""
    return parse_drafter_config(read_object(directory / "config.json"), target)


def parse_drafter_config(values: Mapping[str, Any], target: TextConfig) -> DrafterConfig:
    """The same from an already loaded JSON object. Fields may stand at top level or under `dflash_config`."""
    fields = _flat(values)
    if "DFlash2DraftModel" not in (values.get("architectures") or []):
        raise Fields(values, "drafter config.json").refuse("architectures", '["DFlash2DraftModel"]')
    fields.constant("vocab_size", target.vocab_size, required=True)
    fields.constant("hidden_size", target.hidden_size, required=True)
    fields.constant("is_causal", False)
    layers = fields.integer("num_hidden_layers", high=64)
    if fields.has("layer_types"):
        fields.words("layer_types", layers, ["sliding_attention"])
    config = fields.read(
        DrafterConfig,
        num_hidden_layers=layers,
        rope_theta=_theta(fields),
        target_layer_ids=_taps(fields, target.num_hidden_layers),
        mask_token_id=fields.integer("mask_token_id", 0, target.vocab_size - 1),
        selector_top_k=fields.integer("selector_top_k", high=target.vocab_size),
        logit_softcap=fields.number("final_logit_softcapping", 0.0, 1e4, default=0.0),
    )
    if config.num_attention_heads % config.num_key_value_heads:
        raise fields.refuse("num_key_value_heads", f"a divisor of num_attention_heads = {config.num_attention_heads}")
    if target.hidden_size % config.conv_group_size:
        raise fields.refuse("conv_group_size", f"a divisor of hidden_size = {target.hidden_size}")
    return config


def _flat(values: Mapping[str, Any]) -> Fields:
    """Top level and `dflash_config` as one object; a field that both hold with different values is refused."""
    inner = values.get("dflash_config", {})
    if not isinstance(inner, dict):
        raise Fields(values, "drafter config.json").refuse("dflash_config", "an object")
    for name in inner.keys() & values.keys():
        if inner[name] != values[name]:
            raise ConfigError(
                f"drafter config.json.{name}: {values[name]!r} at top level and {inner[name]!r} under dflash_config; make them agree"
            )
    return Fields({**values, **inner}, "drafter config.json")


def _theta(fields: Fields) -> float:
    if fields.has("rope_parameters"):
        block = fields.inner("rope_parameters")
        block.constant("rope_type", "default")
        return block.number("rope_theta", 1.0, 1e12)
    return fields.number("rope_theta", 1.0, 1e12)


def _taps(fields: Fields, trunk_layers: int) -> tuple[int, ...]:
    taps = fields.integers("target_layer_ids", 0, trunk_layers - 1)
    if list(taps) != sorted(set(taps)):
        raise fields.refuse("target_layer_ids", "ascending layer indices without repeats")
    return taps
