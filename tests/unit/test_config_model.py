"""config.json, generation_config.json and the drafter's config.json: what is read, and what is refused in which words."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from checkpoints.sizes import Sizes, drafter_config, model_config
from lockstep.config.drafter import parse_drafter_config
from lockstep.config.fields import ConfigError
from lockstep.config.generation import read_generation_config
from lockstep.config.model import Attention, Mlp, parse_model_config, read_model_config

DELETE = object()


def changed(values: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    copied = copy.deepcopy(values)
    *parents, leaf = path.split(".")
    inner = copied
    for name in parents:
        inner = inner[name]
    if value is DELETE:
        del inner[leaf]
    else:
        inner[leaf] = value
    return copied


def test_the_tiny_configuration_reads_back() -> None:
    config = parse_model_config(model_config(Sizes()))
    text = config.text
    assert [layer for layer, kind in enumerate(text.attention_kinds) if kind is Attention.DSA] == [3, 7]
    assert text.mlp_kinds == (Mlp.DENSE,) * 5 + (Mlp.SPARSE,) * 3
    assert (text.keys_per_row, text.pools_per_row, text.mtp_layers, text.tie_word_embeddings) == (259, 64, 1, True)
    assert text.eos_token_ids == (2240, 2247, 2249)
    assert config.vision is not None
    assert config.vision.patch_values == 1176
    assert config.media is not None
    assert config.media.image == 2240 + 34
    assert config.quantization is not None
    assert config.quantization.method == "exl3"


@pytest.mark.parametrize("word", ["deepseek_sparse_attention", "indexed_attention", "full_attention"])
def test_every_spelling_of_sparse_attention_means_dsa(word: str) -> None:
    values = model_config(Sizes())
    values["text_config"]["layer_types"] = [word] * 8
    assert set(parse_model_config(values).text.attention_kinds) == {Attention.DSA}


def test_flat_linear_fields_are_read_as_transformers_writes_them() -> None:
    values = changed(model_config(Sizes()), "text_config.linear_attn_config", DELETE)
    values["text_config"] |= {
        "linear_num_heads": 4,
        "linear_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "linear_lower_bound": -5.0,
    }
    assert parse_model_config(values) == parse_model_config(model_config(Sizes()))


def test_leftover_fields_of_related_architectures_change_nothing() -> None:
    values = model_config(Sizes())
    values["text_config"] |= {"indexer_rope_interleave": True, "rope_theta": 1e6, "rope_parameters": {}, "head_dim": 64}
    assert parse_model_config(values) == parse_model_config(model_config(Sizes()))


def test_absent_optional_parts_have_their_documented_meaning() -> None:
    values = model_config(Sizes())
    for name in ("vision_config", "quantization_config", "tie_word_embeddings"):
        del values[name]
    del values["text_config"]["tie_word_embeddings"]
    del values["text_config"]["num_nextn_predict_layers"]
    config = parse_model_config(values)
    assert (config.vision, config.media, config.quantization) == (None, None, None)
    assert (config.text.tie_word_embeddings, config.text.mtp_layers) == (False, 0)


REQUIRED_TEXT = sorted(
    set(model_config(Sizes())["text_config"])
    - {"model_type", "num_nextn_predict_layers", "tie_word_embeddings", "hidden_act", "attention_bias", "num_key_value_heads"}
    - {"index_kpool_always_select_tail", "index_kpool_compress", "index_share_for_mtp_iteration", "indexer_types", "n_group"}
    - {"topk_group", "scoring_func", "topk_method", "norm_topk_prob"}
)


@pytest.mark.parametrize("name", REQUIRED_TEXT)
def test_a_missing_text_field_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=r"found nothing, needed"):
        parse_model_config(changed(model_config(Sizes()), f"text_config.{name}", DELETE))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("model_type", "glm4", r'model_type: found "glm4", needed "glm5_next"'),
        ("text_config", [], r"config.json.text_config: found \[\], needed an object"),
        ("text_config.hidden_size", "256", r'text_config.hidden_size: found "256", needed an integer from 1'),
        ("text_config.hidden_size", True, r"text_config.hidden_size: found true"),
        ("text_config.hidden_size", 0, r"text_config.hidden_size: found 0"),
        ("text_config.rms_norm_eps", float("nan"), r"rms_norm_eps: found NaN, needed a number"),
        ("text_config.layer_types", ["linear_attention"] * 7, r"layer_types: .* needed a list of 8 words"),
        ("text_config.layer_types", ["mamba"] * 8, r"layer_types: .* needed a list of 8 words out of linear_attention"),
        ("text_config.index_topk", 255, r"index_topk: found 255, needed a multiple of index_kpool = 4"),
        ("text_config.num_key_value_heads", 2, r"num_key_value_heads: found 2, needed 4"),
        ("text_config.qk_rope_head_dim", 64, r"qk_rope_head_dim: found 64, needed 0"),
        ("text_config.scoring_func", "softmax", r'scoring_func: found "softmax", needed "sigmoid"'),
        ("text_config.n_group", 8, r"n_group: found 8, needed 1"),
        ("text_config.norm_topk_prob", 1, r"norm_topk_prob: found 1, needed true"),
        ("text_config.indexer_types", ["shared"] * 8, r"indexer_types: .* out of full"),
        ("text_config.num_experts_per_tok", 17, r"num_experts_per_tok: found 17, needed an integer from 1 to 16"),
        ("text_config.num_nextn_predict_layers", 2, r"num_nextn_predict_layers: found 2, needed an integer from 0 to 1"),
        ("text_config.eos_token_id", [2304], r"eos_token_id: found \[2304\]"),
        ("text_config.linear_attn_config.gate_lower_bound", 0, r"gate_lower_bound: found 0, needed a number from -5 to -1e-06"),
        ("text_config.tie_word_embeddings", False, r"contradict each other"),
        ("vision_config.out_hidden_size", 1536, r"out_hidden_size: found 1536, needed 256"),
        ("vision_config.num_heads", 5, r"num_heads: found 5, needed a divisor of hidden_size = 64"),
        ("image_token_id", 2304, r"image_token_id: found 2304"),
        ("quantization_config.quant_method", "gptq", r'quant_method: found "gptq", needed "exl3" or "fp8"'),
        ("quantization_config.tile_order", "sm70_colmajor", r'tile_order: found "sm70_colmajor", needed no such key'),
        ("quantization_config.surprise", 1, r"surprise: found 1, needed no such key"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_found_and_needed(path: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_model_config(changed(model_config(Sizes()), path, value))


def test_the_official_fp8_block_is_read_and_another_block_refused() -> None:
    values = model_config(Sizes())
    block = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
    config = parse_model_config(values | {"quantization_config": block})
    assert config.quantization is not None
    assert config.quantization.block == (128, 128)
    with pytest.raises(ConfigError, match=r"weight_block_size: found \[64, 64\], needed \[128, 128\]"):
        parse_model_config(values | {"quantization_config": block | {"weight_block_size": [64, 64]}})


@pytest.mark.parametrize(("text", "words"), [(None, "no such file"), ("{", "not readable as UTF-8 JSON"), ("[]", "found a JSON list")])
def test_a_file_that_is_no_json_object_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_model_config(tmp_path)


def test_generation_defaults_are_read_and_greedy_is_temperature_zero(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text('{"do_sample": true, "temperature": 0.7, "top_p": 0.95, "eos_token_id": [5, 6]}')
    found = read_generation_config(tmp_path)
    assert (found.eos_token_ids, found.temperature, found.top_p) == ((5, 6), 0.7, 0.95)
    path.write_text('{"do_sample": false, "temperature": 0.7, "eos_token_id": 5}')
    found = read_generation_config(tmp_path)
    assert (found.eos_token_ids, found.temperature, found.top_p) == ((5,), 0.0, 1.0)
    path.write_text('{"eos_token_id": "x"}')
    with pytest.raises(ConfigError, match=r'generation_config.json.eos_token_id: found "x"'):
        read_generation_config(tmp_path)


TARGET = parse_model_config(model_config(Sizes())).text


def test_the_drafter_configuration_reads_nested_and_flat_alike() -> None:
    nested = drafter_config(Sizes())
    flat = {**nested, **nested["dflash_config"]}
    del flat["dflash_config"]
    drafter = parse_drafter_config(nested, TARGET)
    assert drafter == parse_drafter_config(flat, TARGET)
    assert (drafter.drafts, drafter.target_layer_ids, drafter.mask_token_id) == (7, (2, 4, 7), 2276)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        ("architectures", ["Other"], r"DFlash2DraftModel"),
        ("hidden_size", 128, r"hidden_size: found 128, needed 256"),
        ("vocab_size", 1000, r"vocab_size: found 1000, needed 2304"),
        ("rope_theta", DELETE, r"rope_theta: found nothing"),
        ("rms_norm_eps", DELETE, r"rms_norm_eps: found nothing"),
        ("sliding_window", DELETE, r"sliding_window: found nothing"),
        ("is_causal", True, r"is_causal: found true, needed false"),
        ("num_key_value_heads", 3, r"num_key_value_heads: found 3, needed a divisor of num_attention_heads = 4"),
        ("layer_types", ["full_attention"], r"layer_types"),
        ("dflash_config", 3, r"dflash_config: found 3, needed an object"),
        ("dflash_config.target_layer_ids", [2, 8], r"target_layer_ids: found \[2, 8\]"),
        ("dflash_config.target_layer_ids", [4, 2], r"needed ascending layer indices"),
        ("dflash_config.mask_token_id", DELETE, r"mask_token_id: found nothing"),
        ("dflash_config.block_size", 1, r"block_size: found 1"),
        ("dflash_config.conv_group_size", 7, r"conv_group_size: found 7, needed a divisor of hidden_size = 256"),
        ("dflash_config.rope_theta", 1.0, r"rope_theta: 10000.0 at top level and 1.0 under dflash_config"),
    ],
)
def test_a_wrong_drafter_field_is_named(path: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_drafter_config(changed(drafter_config(Sizes()), path, value), TARGET)


def test_the_drafter_rope_theta_may_stand_in_rope_parameters() -> None:
    values = changed(drafter_config(Sizes()), "rope_theta", DELETE)
    values["rope_parameters"] = {"rope_type": "default", "rope_theta": 5e6}
    assert parse_drafter_config(values, TARGET).rope_theta == 5e6


def test_a_saved_transformers_configuration_is_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    given = model_config(Sizes())
    for name in ("quantization_config", "architectures", "dtype"):
        del given[name]
    transformers.Glm5NextConfig(**given).save_pretrained(tmp_path)
    config = read_model_config(tmp_path)
    assert config.text == parse_model_config(model_config(Sizes())).text
    assert config.vision == parse_model_config(model_config(Sizes())).vision
