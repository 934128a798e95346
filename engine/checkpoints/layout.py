"""Every tensor of a checkpoint and of a drafter: published name, shape, stored type, and a useful random scale.

Knows nothing of values or files. Source: the published tensor tables of glm5_next and DFlash2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from lockstep.config.drafter import DrafterConfig
from lockstep.config.model import Attention, Mlp, ModelConfig, TextConfig, VisionConfig

TRUNK = "model.language_model"
VISUAL = "model.visual"


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor as trained. `exl3` matrices are stored as an EXL3 group under the name without `.weight`.

    `mean` and `std` draw random values that let every path of the model matter.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.bfloat16
    mean: float = 0.0
    std: float = 0.1
    exl3: bool = False


def model_slots(config: ModelConfig) -> list[Slot]:
    """All tensors of a checkpoint in the published order: trunk, MTP layer, vision tower."""
    text = config.text
    slots = [Slot(f"{TRUNK}.embed_tokens.weight", (text.vocab_size, text.hidden_size), std=text.hidden_size**-0.5)]
    for layer, (attention, mlp) in enumerate(zip(text.attention_kinds, text.mlp_kinds, strict=True)):
        prefix = f"{TRUNK}.layers.{layer}"
        slots += [*_norms(prefix, text), *_streams(prefix, text)]
        slots += _kda(prefix, text) if attention is Attention.KDA else _dsa(prefix, text)
        slots += _sparse(prefix, text) if mlp is Mlp.SPARSE else _swiglu(f"{prefix}.mlp", text.hidden_size, text.intermediate_size)
    slots.append(_norm(f"{TRUNK}.norm", text.hidden_size))
    if not text.tie_word_embeddings:
        slots.append(_linear("lm_head", text.hidden_size, text.vocab_size))
    if text.mtp_layers:
        slots += _mtp(f"{TRUNK}.layers.{text.num_hidden_layers}", text)
    if config.vision is not None:
        slots += _vision(config.vision)
    return slots


def _norm(name: str, width: int) -> Slot:
    return Slot(f"{name}.weight", (width,), mean=1.0)


def _linear(name: str, inputs: int, outputs: int, exl3: bool = False) -> Slot:
    return Slot(f"{name}.weight", (outputs, inputs), std=inputs**-0.5, exl3=exl3)


def _bias(name: str, width: int) -> Slot:
    return Slot(f"{name}.bias", (width,))


def _norms(prefix: str, text: TextConfig) -> list[Slot]:
    return [_norm(f"{prefix}.{name}", text.hidden_size) for name in ("input_layernorm", "post_attention_layernorm")]


def _streams(prefix: str, text: TextConfig) -> Iterator[Slot]:
    """Both hyper-connection sites of a layer: `hc * (hc + 2)` mixing values from all streams."""
    values = text.hc_mult * (text.hc_mult + 2)
    width = text.hc_mult * text.hidden_size
    for site in ("attn", "ffn"):
        yield Slot(f"{prefix}.hc_{site}_fn", (values, width), std=width**-0.5)
        yield Slot(f"{prefix}.hc_{site}_base", (values,), torch.float32, std=0.5)
        yield Slot(f"{prefix}.hc_{site}_scale", (3,), torch.float32, mean=0.6)


def _kda(prefix: str, text: TextConfig) -> Iterator[Slot]:
    name, hidden, dim = f"{prefix}.self_attn", text.hidden_size, text.linear_head_dim
    width = text.linear_num_heads * dim
    for part in "qkv":
        yield _linear(f"{name}.{part}_proj", hidden, width)
        yield Slot(f"{name}.{part}_conv1d.weight", (width, 1, text.linear_conv_kernel), std=0.5)
    for part in "fg":
        yield _linear(f"{name}.{part}_a_proj", hidden, dim)
        yield _linear(f"{name}.{part}_b_proj", dim, width)
    yield _linear(f"{name}.b_proj", hidden, text.linear_num_heads)
    yield Slot(f"{name}.A_log", (text.linear_num_heads,), torch.float32, std=0.3)
    yield Slot(f"{name}.dt_bias", (width,), torch.float32, mean=-1.0, std=1.0)
    yield _norm(f"{name}.o_norm", dim)
    yield _linear(f"{name}.o_proj", width, hidden)


def _dsa(prefix: str, text: TextConfig) -> Iterator[Slot]:
    name, hidden, heads = f"{prefix}.self_attn", text.hidden_size, text.num_attention_heads
    yield _linear(f"{name}.q_a_proj", hidden, text.q_lora_rank)
    yield _norm(f"{name}.q_a_layernorm", text.q_lora_rank)
    yield _linear(f"{name}.q_b_proj", text.q_lora_rank, heads * text.qk_nope_head_dim)
    yield _linear(f"{name}.kv_a_proj_with_mqa", hidden, text.kv_lora_rank)
    yield _norm(f"{name}.kv_a_layernorm", text.kv_lora_rank)
    yield _linear(f"{name}.kv_b_proj", text.kv_lora_rank, heads * (text.qk_nope_head_dim + text.v_head_dim))
    yield _linear(f"{name}.o_proj", heads * text.v_head_dim, hidden)
    name, dim = f"{name}.indexer", text.index_head_dim
    yield _linear(f"{name}.wq_b", text.q_lora_rank, text.index_n_heads * dim)
    yield _linear(f"{name}.wk", hidden, dim)
    yield _norm(f"{name}.k_norm", dim)
    yield _bias(f"{name}.k_norm", dim)
    yield _linear(f"{name}.weights_proj", hidden, text.index_n_heads)
    yield Slot(f"{name}.index_kpool_compress_ape", (text.index_kpool, dim), std=1.0)
    yield Slot(f"{name}.index_kpool_compress_gate", (dim, hidden), std=hidden**-0.5)


def _swiglu(name: str, hidden: int, width: int, exl3: bool = False) -> Iterator[Slot]:
    yield _linear(f"{name}.gate_proj", hidden, width, exl3)
    yield _linear(f"{name}.up_proj", hidden, width, exl3)
    yield _linear(f"{name}.down_proj", width, hidden, exl3)


def _sparse(prefix: str, text: TextConfig) -> Iterator[Slot]:
    name, hidden = f"{prefix}.mlp", text.hidden_size
    yield _linear(f"{name}.gate", hidden, text.n_routed_experts)
    yield Slot(f"{name}.gate.e_score_correction_bias", (text.n_routed_experts,), torch.float32)
    for expert in range(text.n_routed_experts):
        yield from _swiglu(f"{name}.experts.{expert}", hidden, text.moe_intermediate_size, exl3=True)
    yield from _swiglu(f"{name}.shared_experts", hidden, text.shared_intermediate_size)


def _mtp(prefix: str, text: TextConfig) -> Iterator[Slot]:
    """A DSA and MoE layer with plain residuals; embedding and head are the trunk's."""
    for name in ("enorm", "hnorm", "shared_head.norm"):
        yield _norm(f"{prefix}.{name}", text.hidden_size)
    yield _linear(f"{prefix}.eh_proj", 2 * text.hidden_size, text.hidden_size)
    yield from _norms(prefix, text)
    yield from _dsa(prefix, text)
    yield from _sparse(prefix, text)


def _biased(name: str, inputs: int, outputs: int) -> Iterator[Slot]:
    yield _linear(name, inputs, outputs)
    yield _bias(name, outputs)


def _vision(vision: VisionConfig) -> Iterator[Slot]:
    hidden, patch, out = vision.hidden_size, vision.patch_size, vision.out_hidden_size
    shape = (hidden, vision.in_channels, vision.temporal_patch_size, patch, patch)
    yield Slot(f"{VISUAL}.patch_embed.proj.weight", shape, std=vision.patch_values**-0.5)
    yield _bias(f"{VISUAL}.patch_embed.proj", hidden)
    for block in range(vision.depth):
        name = f"{VISUAL}.blocks.{block}"
        yield _norm(f"{name}.norm1", hidden)
        yield from _biased(f"{name}.attn.qkv", hidden, 3 * hidden)
        yield _norm(f"{name}.attn.q_norm", hidden // vision.num_heads)
        yield _norm(f"{name}.attn.k_norm", hidden // vision.num_heads)
        yield from _biased(f"{name}.attn.proj", hidden, hidden)
        yield _norm(f"{name}.norm2", hidden)
        yield from _biased(f"{name}.mlp.gate_proj", hidden, vision.intermediate_size)
        yield from _biased(f"{name}.mlp.up_proj", hidden, vision.intermediate_size)
        yield from _biased(f"{name}.mlp.down_proj", vision.intermediate_size, hidden)
    yield _norm(f"{VISUAL}.post_layernorm", hidden)
    merge = vision.spatial_merge_size
    yield Slot(f"{VISUAL}.downsample.weight", (out, hidden, merge, merge), std=(hidden * merge**2) ** -0.5)
    yield _bias(f"{VISUAL}.downsample", out)
    yield _linear(f"{VISUAL}.merger.proj", out, out)
    yield _norm(f"{VISUAL}.merger.post_projection_norm", out)
    yield _bias(f"{VISUAL}.merger.post_projection_norm", out)
    yield from _swiglu(f"{VISUAL}.merger", out, vision.projection_intermediate_size)


def drafter_slots(config: DrafterConfig) -> list[Slot]:
    """All tensors of a DFlash2 drafter; embedding and head are the target's."""
    hidden, heads, kv = config.hidden_size, config.num_attention_heads, config.num_key_value_heads
    dim, taps = config.head_dim, config.conv_kernel_size
    slots = [
        _linear("fc", hidden * len(config.target_layer_ids), hidden),
        _norm("hidden_norm", hidden),
        _norm("norm", hidden),
        Slot("candidate_selector.predecessor_codebook", (config.vocab_size, config.selector_rank)),
        Slot("candidate_selector.successor_codebook", (config.vocab_size, config.selector_rank)),
        _linear("candidate_selector.hidden_projection", hidden, config.selector_rank),
    ]
    for layer in range(config.num_hidden_layers):
        name = f"layers.{layer}"
        slots += [_norm(f"{name}.input_layernorm", hidden), _norm(f"{name}.post_attention_layernorm", hidden)]
        slots += [_linear(f"{name}.self_attn.q_proj", hidden, heads * dim), _linear(f"{name}.self_attn.o_proj", heads * dim, hidden)]
        slots += [_linear(f"{name}.self_attn.{part}_proj", hidden, kv * dim) for part in "kv"]
        slots += [_norm(f"{name}.self_attn.{part}_norm", dim) for part in "qk"]
        slots += _swiglu(f"{name}.mlp", hidden, config.intermediate_size)
        for conv in ("attention_conv", "mlp_conv"):
            slots.append(Slot(f"{name}.{conv}.base_kernel", (2, taps, hidden), mean=0.5))
            slots.append(_linear(f"{name}.{conv}.kernel_projection", hidden, 2 * taps * (hidden // config.conv_group_size)))
    return slots
