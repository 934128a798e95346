"""Logits and selected keys equal those of the transformers reference at fp32, on every way a prompt can enter."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from lockstep.cache import Sequence, StateSlots, TokenPool
from lockstep.layers.latent_attention import LatentAttention
from lockstep.model.glm import GlmModel
from lockstep.weights import Checkpoint

transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)

TOLERANCE = 1e-4
KINDS = ["linear_attention", "linear_attention", "linear_attention", "deepseek_sparse_attention"]
# name -> tokens, text configuration. The first selects 32 of up to 150 keys; the second has room for every key.
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "past the index_topk limit": (
        150,
        {
            "vocab_size": 320, "hidden_size": 96, "intermediate_size": 160, "moe_intermediate_size": 48, "num_hidden_layers": 8,
            "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 24,
            "v_head_dim": 24, "n_routed_experts": 8, "num_experts_per_tok": 2, "index_topk": 32, "index_kpool": 4, "index_head_dim": 16,
            "index_n_heads": 8, "layer_types": KINDS * 2, "mlp_layer_types": ["dense"] * 2 + ["sparse"] * 6, "swiglu_limit": 2.0,
            "linear_attn_config": {"num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0},
        },
    ),
    "within the index_topk limit": (
        203,
        {
            "vocab_size": 400, "hidden_size": 128, "intermediate_size": 96, "moe_intermediate_size": 64, "num_hidden_layers": 5,
            "num_attention_heads": 8, "num_key_value_heads": 8, "q_lora_rank": 40, "kv_lora_rank": 48, "qk_nope_head_dim": 16,
            "v_head_dim": 32, "n_routed_experts": 12, "num_experts_per_tok": 3, "index_topk": 256, "index_kpool": 4, "index_head_dim": 32,
            "index_n_heads": 8, "layer_types": [*KINDS, "linear_attention"], "mlp_layer_types": ["dense"] + ["sparse"] * 4,
            "swiglu_limit": 10.0,
            "linear_attn_config": {"num_heads": 8, "head_dim": 16, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0},
        },
    ),
}  # fmt: skip
SCALES = {
    "base": (0, 0.5), "scale": (0.6, 0.1), "fn": (0, 0.1), "A_log": (0, 0.3), "dt_bias": (-1, 1.0), "index_kpool_compress_ape": (0, 1.0),
    "e_score_correction_bias": (0, 0.1), "bias": (0, 0.1),
}  # fmt: skip


class Case:
    """A random reference model, its answers for one uncached pass, and the same weights in the engine."""

    def __init__(self, tokens: int, text: dict[str, Any], directory: Path) -> None:
        generator = torch.Generator().manual_seed(1)
        vision = {"depth": 1, "hidden_size": 64, "num_heads": 4, "intermediate_size": 96, "out_hidden_size": text["hidden_size"]}
        vision |= {"projection_intermediate_size": 128}
        marks = ("image", "video", "image_start", "image_end", "video_start", "video_end")
        ids = {f"{mark}_token_id": 300 + place for place, mark in enumerate(marks)}
        text = text | {"pad_token_id": 0, "eos_token_id": [1, 2]}
        reference = transformers.Glm5NextForConditionalGeneration(
            transformers.Glm5NextConfig(text_config=text, vision_config=vision, **ids)
        ).eval()
        randomize(reference, generator)
        self.tokens = torch.randint(3, 300, (tokens,), generator=generator).tolist()
        self.keys, self.logits = reference_answers(reference, self.tokens)
        reference.save_pretrained(directory)
        checkpoint = Checkpoint(directory)
        self.config = checkpoint.config.text
        self.model = GlmModel.load(checkpoint, checkpoint.config, "cpu", torch.float32)
        self.pool = TokenPool(self.config, 8, "cpu", torch.float32)
        self.slots = StateSlots(self.config, 1, "cpu")
        self.model.attach(self.pool, self.slots)
        self.seen: dict[int, list[list[int]]] = {}
        for layer in self.model.layers:
            if isinstance(layer.attention, LatentAttention):
                layer.attention.on_select = self.note

    def note(self, layer: int, rows: Any, chosen: Any) -> None:
        """Write down the positions each row attends to."""
        pool = self.config.index_kpool
        picked = {row: pools for group, of in chosen for row, pools in zip(group.rows.tolist(), of.tolist(), strict=True)}
        for row, position in enumerate(rows.positions):
            whole = (position + 1) // pool
            keys = [p * pool + member for p in picked.get(row, range(whole)) for member in range(pool)]
            self.seen.setdefault(layer, []).append([*keys, *range(whole * pool, position + 1)])

    def empty(self) -> Sequence:
        self.slots.reset(0)
        self.seen.clear()
        return Sequence(0, [5, 2, 7, 0])

    def prompt_logits(self, sequence: Sequence, ids: list[int]) -> torch.Tensor:
        """Logits of every row of a prompt slice: the last layer's tap is what the final norm reads."""
        taps = self.model.run_prompt(sequence, ids, taps=[self.config.num_hidden_layers - 1]).taps[0]
        return self.model.head(self.model.norm(taps))


def randomize(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Draw every tensor at a useful scale; the default initialisation hides most paths."""
    with torch.no_grad():
        for name, values in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" in name:
                continue
            leaf = name.split(".")[-1]
            if leaf in SCALES:
                mean, deviation = SCALES[leaf]
            elif values.ndim == 1:
                mean, deviation = 1, 0.1
            elif "conv1d" in name or "embed_tokens" in name:
                mean, deviation = 0, 0.5 if "conv1d" in name else 1.0
            else:
                mean, deviation = 0, 1 / math.sqrt(values[0].numel())
            values.copy_(mean + deviation * torch.randn(values.shape, generator=generator))


def reference_answers(reference: Any, tokens: list[int]) -> tuple[list[list[list[int]]], torch.Tensor]:
    """Selected keys per DSA layer and row, and logits, of one uncached forward."""
    log: list[Any] = []
    indexers = [layer.self_attn.indexer for layer in reference.model.language_model.layers if getattr(layer.self_attn, "indexer", None)]
    hooks = [indexer.register_forward_hook(lambda _m, _a, out: log.append(out)) for indexer in indexers]
    with torch.no_grad():
        logits = reference(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float()
    for hook in hooks:
        hook.remove()
    return [[sorted(row[row >= 0].tolist()) for row in picks[0]] for picks in log], logits


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(*CASES[request.param], tmp_path_factory.mktemp("reference"))


def assert_same(case: Case, logits: torch.Tensor) -> None:
    assert logits.shape == case.logits.shape
    assert (logits - case.logits).abs().max().item() <= TOLERANCE
    assert len(case.seen) == len(case.keys) > 0
    for layer, keys in enumerate(case.keys):
        assert [sorted(row) for row in case.seen[layer]] == keys


def test_prompt_in_one_go_has_the_references_logits_and_keys(case: Case) -> None:
    assert_same(case, case.prompt_logits(case.empty(), case.tokens))


@pytest.mark.parametrize("budget", [64, 50, 7, 128])
def test_prompt_in_slices_of_a_budget_rounded_to_the_grid_has_the_references_logits_and_keys(case: Case, budget: int) -> None:
    sequence, size = case.empty(), -(-budget // 64) * 64
    parts = [case.prompt_logits(sequence, case.tokens[at : at + size]) for at in range(0, len(case.tokens), size)]
    assert_same(case, torch.cat(parts))


def test_token_by_token_has_the_references_logits_and_keys(case: Case) -> None:
    sequence = case.empty()
    parts = [case.prompt_logits(sequence, case.tokens[:1])]
    for token in case.tokens[1:]:
        window = [(sequence, [token])]
        parts.append(case.model.head(case.model.run_step(window).hidden))
        case.model.commit(window, [1])
    assert_same(case, torch.cat(parts))


def test_windows_of_drafted_rows_have_the_references_logits_and_keys(case: Case) -> None:
    sequence, at = case.empty(), 65
    parts = [case.prompt_logits(sequence, case.tokens[:at])]
    while at < len(case.tokens):
        window = [(sequence, case.tokens[at : at + 5])]
        parts.append(case.model.head(case.model.run_step(window).hidden))
        case.model.commit(window, [len(window[0][1])])
        at += 5
    assert_same(case, torch.cat(parts))


def test_the_last_row_selects_whole_pools_up_to_the_limit_and_the_tail(case: Case) -> None:
    pool, tokens = case.config.index_kpool, len(case.tokens)
    expected = min(tokens // pool, case.config.pools_per_row) * pool + tokens % pool
    assert [len(layer[-1]) for layer in case.keys] == [expected] * len(case.keys)
    assert (expected < tokens) == (tokens > case.config.keys_per_row)
