"""The published `config.json` of a glm5_next checkpoint as frozen dataclasses.

Knows nothing of tensors, files beside config.json or how the numbers are used. Standard library only. Every field the engine
uses is required unless its absence has a documented meaning; class defaults of other programs differ from the published
values, so none is borrowed. Leftovers of related architectures (rope fields, indexer_rope_interleave, output_router_logits,
initializer_range, dropout, layer lists inside linear_attn_config) change nothing in this architecture and are not read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from lockstep.config.fields import ConfigError, Fields, Part, Within, read_object

_ATTENTION_WORDS = {
    "linear_attention": "kda",
    "deepseek_sparse_attention": "dsa",
    "indexed_attention": "dsa",
    "full_attention": "dsa",
}
_EXL3_KEYS = frozenset(
    {"quant_method", "version", "bits", "head_bits", "mtp_bits", "vision_bits", "codebook", "out_scales", "calibration"}
    | {"original_quantization_config"}
)
_FP8_KEYS = frozenset({"quant_method", "activation_scheme", "weight_block_size", "fmt", "modules_to_not_convert", "ignored_layers"})


class Attention(StrEnum):
    """Kind of a layer's attention."""

    KDA = "kda"
    DSA = "dsa"


class Mlp(StrEnum):
    """Kind of a layer's feed-forward part."""

    DENSE = "dense"
    SPARSE = "sparse"


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The language model. Names follow the published file; `linear_*` fields come from its `linear_attn_config`.

    `attention_kinds` and `mlp_kinds` have one entry a trunk layer. `mtp_layers` is 0 or 1; the MTP layer's tensors carry the
    layer index `num_hidden_layers`. All widths count values, `index_topk` counts tokens.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    attention_kinds: tuple[Attention, ...]
    mlp_kinds: tuple[Mlp, ...]
    max_position_embeddings: int
    rms_norm_eps: Part
    tie_word_embeddings: bool
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    v_head_dim: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    index_kpool: Annotated[int, Within(1, 256)]
    linear_num_heads: int
    linear_head_dim: int
    linear_conv_kernel: int
    linear_gate_lower_bound: float
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    n_shared_experts: Annotated[int, Within(1, 64)]
    routed_scaling_factor: Annotated[float, Within(0.0, 1e3)]
    swiglu_limit: Annotated[float, Within(0.0, 1e6)]
    hc_mult: Annotated[int, Within(1, 64)]
    hc_eps: Part
    hc_sinkhorn_iters: Annotated[int, Within(1, 1000)]
    mtp_layers: int
    eos_token_ids: tuple[int, ...]
    pad_token_id: int

    @property
    def pools_per_row(self) -> int:
        """Pools one row selects at most (index_topk / index_kpool)."""
        return self.index_topk // self.index_kpool

    @property
    def keys_per_row(self) -> int:
        """K: keys one row attends at most, selected pools plus the incomplete pool's tokens."""
        return self.index_topk + self.index_kpool - 1

    @property
    def shared_intermediate_size(self) -> int:
        """Width of the shared expert's SwiGLU."""
        return self.moe_intermediate_size * self.n_shared_experts


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """The vision tower. `patch_size` in pixels, `temporal_patch_size` in frames, `spatial_merge_size` in patches."""

    depth: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    in_channels: Annotated[int, Within(default=3)]
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int
    out_hidden_size: int
    projection_intermediate_size: int
    rms_norm_eps: Part
    swiglu_limit: Annotated[float, Within(0.0, 1e6, 10.0)]
    rope_theta: float

    @property
    def patch_values(self) -> int:
        """Values of one patch: channels x frames x rows x columns."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2


@dataclass(frozen=True, slots=True)
class MediaTokens:
    """Ids of the placeholder tokens around and inside pictures and clips."""

    image: int
    video: int
    image_start: int
    image_end: int
    video_start: int
    video_end: int


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the maker stored weights: `method` is `exl3` or `fp8`. Widths and codebooks are properties of each tensor, not read here.

    `block` is the (rows, columns) block of one fp8 scale, None for exl3.
    """

    method: str
    block: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A whole `config.json`. `vision` is None for a text-only checkpoint, `quantization` None for plain weights."""

    text: TextConfig
    vision: VisionConfig | None
    media: MediaTokens | None
    quantization: Quantization | None


def read_model_config(directory: Path) -> ModelConfig:
    """Read `config.json` of a checkpoint folder. Raises ConfigError naming field, found and needed."""
    return parse_model_config(read_object(directory / "config.json"))


def parse_model_config(values: Mapping[str, Any]) -> ModelConfig:
    """The same from an already loaded JSON object."""
    top = Fields(values, "config.json")
    top.constant("model_type", "glm5_next", required=True)
    text = _text(top)
    vision = _vision(top.inner("vision_config"), text) if top.has("vision_config") else None
    media = None
    if vision is not None:
        names = {name: f"{name}_token_id" for name in ("image", "video", "image_start", "image_end", "video_start", "video_end")}
        media = MediaTokens(**{name: top.integer(field, 0, text.vocab_size - 1) for name, field in names.items()})
    quantization = _quantization(top.inner("quantization_config")) if top.has("quantization_config") else None
    return ModelConfig(text, vision, media, quantization)


def _text(top: Fields) -> TextConfig:
    text = top.inner("text_config")
    _refuse_other_architectures(text)
    layers, vocab = text.integer("num_hidden_layers", high=1024), text.integer("vocab_size")
    config = text.read(
        TextConfig,
        vocab_size=vocab,
        num_hidden_layers=layers,
        attention_kinds=tuple(Attention(_ATTENTION_WORDS[kind]) for kind in text.words("layer_types", layers, _ATTENTION_WORDS)),
        mlp_kinds=tuple(Mlp(kind) for kind in text.words("mlp_layer_types", layers, list(Mlp))),
        tie_word_embeddings=_tied(top, text),
        **_linear(text),
        num_experts_per_tok=text.integer("num_experts_per_tok", high=text.integer("n_routed_experts")),
        mtp_layers=text.integer("num_nextn_predict_layers", 0, 1, default=0),
        eos_token_ids=(text if text.has("eos_token_id") else top).integers("eos_token_id", 0, vocab - 1),
        pad_token_id=(text if text.has("pad_token_id") else top).integer("pad_token_id", 0, vocab - 1),
    )
    text.constant("num_key_value_heads", config.num_attention_heads)
    if config.index_topk % config.index_kpool:
        raise text.refuse("index_topk", f"a multiple of index_kpool = {config.index_kpool}")
    return config


def _refuse_other_architectures(text: Fields) -> None:
    """Fields with one implemented value. An absent one has that value by the published layout."""
    text.constant("qk_rope_head_dim", 0, required=True)
    for name, only in {
        "hidden_act": "silu",
        "attention_bias": False,
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "index_kpool_compress": True,
        "index_kpool_always_select_tail": True,
    }.items():
        text.constant(name, only)
    if text.has("indexer_types"):
        text.words("indexer_types", text.integer("num_hidden_layers"), ["full"])


def _linear(text: Fields) -> dict[str, Any]:
    """The KDA block: nested as published, or flat as transformers writes it back."""
    nested = text.has("linear_attn_config")
    block = text.inner("linear_attn_config") if nested else text
    names = ("num_heads", "head_dim", "short_conv_kernel_size", "gate_lower_bound")
    if not nested:
        names = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim", "linear_lower_bound")
    heads, head_dim, kernel, bound = names
    return {
        "linear_num_heads": block.integer(heads),
        "linear_head_dim": block.integer(head_dim),
        "linear_conv_kernel": block.integer(kernel, low=2, high=64),
        "linear_gate_lower_bound": block.number(bound, -5.0, -1e-6),
    }


def _tied(top: Fields, text: Fields) -> bool:
    """Absent means untied. Both levels may say it; a contradiction cannot be resolved from the file."""
    said = {fields.boolean("tie_word_embeddings") for fields in (top, text) if fields.has("tie_word_embeddings")}
    if len(said) == 2:
        raise ConfigError(
            "tie_word_embeddings: config.json and config.json.text_config contradict each other; make both the same"
            " (true only if the checkpoint has no lm_head.weight)"
        )
    return said == {True}


def _vision(vision: Fields, text: TextConfig) -> VisionConfig:
    vision.constant("attention_bias", True)
    vision.constant("hidden_act", "silu")
    vision.constant("out_hidden_size", text.hidden_size, required=True)
    rope = vision.inner("rope_parameters") if vision.has("rope_parameters") else Fields({}, "")
    config = vision.read(VisionConfig, rope_theta=rope.number("rope_theta", 1.0, 1e12, default=10000.0))
    hidden, heads = config.hidden_size, config.num_heads
    if hidden % heads or hidden // heads % 4:
        raise vision.refuse("num_heads", f"a divisor of hidden_size = {hidden} that leaves a head width divisible by 4")
    return config


def _quantization(block: Fields) -> Quantization:
    """Method and fp8 block. A key this engine does not know may change what the stored words mean, so it is refused."""
    method = block.values.get("quant_method")
    known = {"exl3": _EXL3_KEYS, "fp8": _FP8_KEYS}.get(method) if isinstance(method, str) else None
    if known is None:
        raise block.refuse("quant_method", '"exl3" or "fp8"')
    for name in sorted(set(block.values) - known):
        raise block.refuse(name, f"no such key (a {method} checkpoint may carry {', '.join(sorted(known))}); choose another checkpoint")
    if method == "exl3":
        return Quantization("exl3")
    block.constant("fmt", "e4m3")
    size = block.integers("weight_block_size", 1, 1 << 16)
    if size != (128, 128):
        raise block.refuse("weight_block_size", "[128, 128]")
    return Quantization("fp8", (128, 128))
