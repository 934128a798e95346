"""Sizes of the tiny checkpoint, and the configuration files that follow from them.

Knows the published file layouts; nothing of tensors or of the tokenizer's contents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Special tokens in the published order. The first group is dropped when text is decoded for people, the second is kept.
HIDDEN_TOKENS = (
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
    "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>", "<|begin_of_audio|>", "<|end_of_audio|>",
    "<|begin_of_transcription|>", "<|end_of_transcription|>", "<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>",
)  # fmt: skip
KEPT_TOKENS = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<arg_key>", "</arg_key>",
    "<arg_value>", "</arg_value>", "/nothink", "<|begin_of_box|>", "<|end_of_box|>", "<|image|>", "<|video|>",
)  # fmt: skip
SPECIAL_TOKENS = HIDDEN_TOKENS + KEPT_TOKENS
STOP_TOKENS = ("<|endoftext|>", "<|user|>", "<|observation|>")


@dataclass(frozen=True, slots=True)
class Sizes:
    """Dimensions of target and drafter. Widths that EXL3 cuts (`hidden`, `expert_width`) are multiples of 128.

    `bpe_tokens` ordinary tokens come first, the special tokens follow, the rest of `vocab` rows is padding.
    """

    bpe_tokens: int = 2240
    vocab: int = 2304
    hidden: int = 256
    layers: int = 8
    dense_layers: int = 5
    dense_width: int = 128
    experts: int = 16
    experts_per_token: int = 2
    expert_width: int = 128
    heads: int = 4
    q_lora: int = 64
    kv_lora: int = 64
    nope: int = 32
    value: int = 32
    index_heads: int = 8
    index_dim: int = 32
    index_topk: int = 256
    linear_heads: int = 4
    linear_dim: int = 32
    context: int = 32768
    vision_depth: int = 2
    vision_hidden: int = 64
    vision_heads: int = 2
    vision_width: int = 128
    vision_projection: int = 128
    drafter_layers: int = 1
    drafter_heads: int = 4
    drafter_kv_heads: int = 2
    drafter_dim: int = 32
    drafter_width: int = 128
    drafter_taps: tuple[int, ...] = (2, 4, 7)
    drafter_window: int = 256
    drafter_rank: int = 32

    def token(self, text: str) -> int:
        """Id of a special token."""
        return self.bpe_tokens + SPECIAL_TOKENS.index(text)

    @property
    def mask_token(self) -> int:
        """The drafter's mask row: the first padding row, as published."""
        return self.bpe_tokens + len(SPECIAL_TOKENS)


def model_config(size: Sizes) -> dict[str, Any]:
    """`config.json` in the published layout."""
    stops = [size.token(text) for text in STOP_TOKENS]
    return {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "image_token_id": size.token("<|image|>"),
        "video_token_id": size.token("<|video|>"),
        "image_start_token_id": size.token("<|begin_of_image|>"),
        "image_end_token_id": size.token("<|end_of_image|>"),
        "video_start_token_id": size.token("<|begin_of_video|>"),
        "video_end_token_id": size.token("<|end_of_video|>"),
        "text_config": _text(size, stops),
        "vision_config": {
            "model_type": "glm5_next_vision",
            "depth": size.vision_depth,
            "hidden_size": size.vision_hidden,
            "num_heads": size.vision_heads,
            "intermediate_size": size.vision_width,
            "in_channels": 3,
            "image_size": 448,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "spatial_merge_size": 2,
            "out_hidden_size": size.hidden,
            "projection_intermediate_size": size.vision_projection,
            "rms_norm_eps": 1e-5,
            "hidden_act": "silu",
            "attention_bias": True,
            "swiglu_limit": 10.0,
        },
        "quantization_config": {
            "quant_method": "exl3",
            "version": "lockstep",
            "bits": 4.0,
            "head_bits": 16,
            "codebook": "mcg",
            "out_scales": "never",
        },
    }


def _text(size: Sizes, stops: list[int]) -> dict[str, Any]:
    kda = [layer for layer in range(size.layers) if layer % 4 != 3]
    kinds = ["linear_attention" if layer in kda else "deepseek_sparse_attention" for layer in range(size.layers)]
    return {
        "model_type": "glm5_next_text",
        "vocab_size": size.vocab,
        "hidden_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_nextn_predict_layers": 1,
        "max_position_embeddings": size.context,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "layer_types": kinds,
        "mlp_layer_types": ["dense" if layer < size.dense_layers else "sparse" for layer in range(size.layers)],
        "linear_attn_config": {
            "num_heads": size.linear_heads,
            "head_dim": size.linear_dim,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
        },
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "q_lora_rank": size.q_lora,
        "kv_lora_rank": size.kv_lora,
        "qk_nope_head_dim": size.nope,
        "qk_rope_head_dim": 0,
        "v_head_dim": size.value,
        "index_n_heads": size.index_heads,
        "index_head_dim": size.index_dim,
        "index_topk": size.index_topk,
        "index_kpool": 4,
        "index_kpool_always_select_tail": True,
        "index_kpool_compress": True,
        "index_share_for_mtp_iteration": True,
        "indexer_types": ["full"] * size.layers,
        "intermediate_size": size.dense_width,
        "moe_intermediate_size": size.expert_width,
        "n_routed_experts": size.experts,
        "num_experts_per_tok": size.experts_per_token,
        "n_shared_experts": 1,
        "n_group": 1,
        "topk_group": 1,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "swiglu_limit": 10.0,
        "hc_mult": 4,
        "hc_eps": 1e-6,
        "hc_sinkhorn_iters": 20,
        "eos_token_id": stops,
        "pad_token_id": stops[0],
    }


def generation_config(size: Sizes) -> dict[str, Any]:
    """`generation_config.json`: the published sampling defaults."""
    stops = [size.token(text) for text in STOP_TOKENS]
    return {"do_sample": True, "temperature": 1.0, "top_p": 0.95, "eos_token_id": stops, "pad_token_id": stops[0]}


def processor_config() -> dict[str, Any]:
    """`processor_config.json`: pixel budgets and normalisation, which do not depend on the model's size."""
    shared = {
        "do_convert_rgb": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "resample": 3,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "patch_expand_factor": 1,
        "min_image_tokens": 16,
    }
    return {
        "processor_class": "Glm5NextProcessor",
        "image_processor": {**shared, "image_processor_type": "Glm5NextImageProcessor", "max_image_tokens": 8000},
        "video_processor": {
            **shared,
            "video_processor_type": "Glm5NextVideoProcessor",
            "max_image_tokens": 240000,
            "fps": 2,
            "max_frames": 2048,
        },
    }


def drafter_config(size: Sizes) -> dict[str, Any]:
    """`drafter/config.json`."""
    return {
        "architectures": ["DFlash2DraftModel"],
        "model_type": "dflash2",
        "dtype": "bfloat16",
        "vocab_size": size.vocab,
        "hidden_size": size.hidden,
        "num_hidden_layers": size.drafter_layers,
        "num_attention_heads": size.drafter_heads,
        "num_key_value_heads": size.drafter_kv_heads,
        "head_dim": size.drafter_dim,
        "intermediate_size": size.drafter_width,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "sliding_window": size.drafter_window,
        "layer_types": ["sliding_attention"] * size.drafter_layers,
        "is_causal": False,
        "dflash_config": {
            "block_size": 8,
            "target_layer_ids": list(size.drafter_taps),
            "mask_token_id": size.mask_token,
            "conv_kernel_size": 2,
            "conv_group_size": 16,
            "selector_rank": size.drafter_rank,
            "selector_top_k": 16,
        },
    }
