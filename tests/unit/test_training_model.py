"""The training form of the model computes what the transformers reference computes, also with documents packed in rows."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from embedded.make.batch import Batch, of_rows
from embedded.make.data.pixels import patches
from embedded.make.kernels import plain_recurrence, plain_sinkhorn, recurrence
from embedded.make.model import Model
from embedded.make.vision import tower
from embedded.make.weights import gather

from lockstep.config.model import ModelConfig, read_model_config

transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)

KINDS = ["linear_attention", "linear_attention", "linear_attention", "deepseek_sparse_attention"]
TEXT = {
    "vocab_size": 320, "hidden_size": 128, "intermediate_size": 64, "moe_intermediate_size": 64, "num_hidden_layers": 8,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2, "index_topk": 32, "index_kpool": 4, "index_head_dim": 16,
    "index_n_heads": 8, "layer_types": KINDS * 2, "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 5, "swiglu_limit": 2.0,
    "linear_attn_config": {"num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0},
    "pad_token_id": 0, "eos_token_id": [1, 2], "tie_word_embeddings": True,
}  # fmt: skip
VISION = {
    "depth": 2,
    "hidden_size": 64,
    "num_heads": 2,
    "intermediate_size": 96,
    "out_hidden_size": 128,
    "projection_intermediate_size": 96,
}
MARKS = ("image", "video", "image_start", "image_end", "video_start", "video_end")
IDS = {f"{mark}_token_id": 300 + place for place, mark in enumerate(MARKS)}
SCALES = {"base": (0, 0.5), "scale": (0.6, 0.1), "fn": (0, 0.1), "A_log": (0, 0.3), "dt_bias": (-1, 1.0), "bias": (0, 0.1)}
TOLERANCE = 1e-3
LENGTHS = (150, 37, 61, 150, 90)


class Pair:
    """The reference and the training form with the same random weights."""

    def __init__(self, directory: Path) -> None:
        from safetensors.torch import load_file

        generator = torch.Generator().manual_seed(1)
        config = transformers.Glm5NextConfig(text_config=TEXT, vision_config=VISION, tie_word_embeddings=True, **IDS)
        self.reference = transformers.Glm5NextForConditionalGeneration(config).eval()
        with torch.no_grad():
            for name, value in [*self.reference.named_parameters(), *self.reference.named_buffers()]:
                mean, deviation = SCALES.get(name.split(".")[-1], (1, 0.1) if value.ndim == 1 else (0, 1 / math.sqrt(value[0].numel())))
                if "inv_freq" not in name:
                    value.copy_(mean + deviation * torch.randn(value.shape, generator=generator))
        self.reference.save_pretrained(directory)
        self.config: ModelConfig = read_model_config(directory)
        plain = {name: value for file in directory.glob("*.safetensors") for name, value in load_file(file).items()}
        self.model = Model(self.config, gather(plain), torch.float32)
        self.documents = [torch.randint(3, 300, (size,), generator=generator) for size in LENGTHS]

    def answer(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return self.reference(input_ids=ids[None], use_cache=False).logits[0].float()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("reference"))


def packed(documents: list[torch.Tensor], length: int = 256) -> tuple[Batch, list[int]]:
    """Documents at multiples of 4, each row filled in order; the batch and the flat place of each document."""
    rows: list[tuple[torch.Tensor, torch.Tensor]] = []
    places, used = [], length
    for ids in documents:
        if used + len(ids) > length:
            rows.append((torch.zeros(length, dtype=torch.long), torch.zeros(length, dtype=torch.uint8)))
            used = 0
        row, marks = rows[-1]
        row[used : used + len(ids)], marks[used : used + len(ids)], marks[used] = ids, 2, 4
        places.append((len(rows) - 1) * length + used)
        used = -(-(used + len(ids)) // 4) * 4
    return of_rows(torch.stack([r for r, _ in rows]), torch.stack([m for _, m in rows])), places


@torch.no_grad()
def test_packed_documents_have_the_references_logits_also_past_the_selection_limit(pair: Pair) -> None:
    batch, places = packed(pair.documents)
    logits = pair.model.logits(pair.model.trunk(batch).hidden)
    assert max(LENGTHS) > TEXT["index_topk"] + 3
    for ids, place in zip(pair.documents, places, strict=True):
        assert (logits[place : place + len(ids)] - pair.answer(ids)).abs().max().item() <= TOLERANCE


@torch.no_grad()
def test_a_document_does_not_see_its_neighbours_in_the_row(pair: Pair) -> None:
    batch, places = packed(pair.documents)
    other, moved = packed([pair.documents[2], pair.documents[0]])
    first, second = (pair.model.trunk(b).hidden for b in (batch, other))
    size = LENGTHS[0]
    assert (first[places[0] : places[0] + size] - second[moved[1] : moved[1] + size]).abs().max().item() <= 1e-4


def test_every_weight_gets_a_gradient_and_the_indexer_only_from_its_own_loss(pair: Pair) -> None:
    weights = {name: value.clone().requires_grad_() for name, value in pair.model.weights.items()}
    model = Model(pair.config, weights, torch.float32)
    batch, _ = packed(pair.documents[:2])
    trunk = model.trunk(batch)
    loss, _ = model.score(trunk.hidden, model.embed, batch.ahead(1))
    names = [name for name in weights if "visual" not in name and "correction_bias" not in name]
    own = dict(zip(names, torch.autograd.grad(loss.sum(), [weights[n] for n in names], retain_graph=True, allow_unused=True), strict=True))
    assert all((grad is None) == ("indexer" in name) for name, grad in own.items())
    indexer = [name for name in names if "indexer" in name]
    assert isinstance(trunk.indexer_loss, torch.Tensor)
    assert all(grad.abs().max() > 0 for grad in torch.autograd.grad(trunk.indexer_loss, [weights[n] for n in indexer]))


@torch.no_grad()
def test_pictures_reach_the_text_as_in_the_reference(pair: Pair) -> None:
    frames = torch.from_numpy(np.random.default_rng(0).integers(0, 9, (2, 112, 112), dtype=np.uint8))
    shown = torch.stack([frames, frames], 1)
    assert pair.config.vision is not None
    own = tower(patches(shown), pair.model._visual, pair.config.vision)
    reference = pair.reference.model.get_image_features(
        patches(shown).flatten(0, 1), torch.tensor([[1, 8, 8]] * 2), return_dict=True
    ).pooler_output
    assert (own - torch.stack(list(reference))).abs().max().item() <= 1e-4
    ids = pair.documents[0].clone()
    ids[20:36] = IDS["image_token_id"]
    batch, places = packed([ids])
    with_picture = Batch(batch.rows, batch.ids, batch.document, batch.position, batch.kind, shown[:1], torch.tensor([places[0] + 20]))
    wanted = pair.reference(
        input_ids=ids[None], pixel_values=patches(shown[:1]).flatten(0, 1), image_grid_thw=torch.tensor([[1, 8, 8]]), use_cache=False
    ).logits[0]
    logits = pair.model.logits(pair.model.trunk(with_picture).hidden)[places[0] : places[0] + len(ids)]
    assert (logits - wanted).abs().max().item() <= TOLERANCE


def test_labels_stay_inside_a_document() -> None:
    batch, _ = packed([torch.arange(10, 16), torch.arange(20, 23)], 16)
    assert batch.ahead(1)[:8].tolist() == [11, 12, 13, 14, 15, -1, -1, -1]
    assert batch.ahead(2)[8:12].tolist() == [22, -1, -1, -1]


def test_the_recurrence_forgets_at_a_document_start() -> None:
    q, k, v, g = (torch.randn(12, 2, 8) for _ in range(4))
    keep = torch.ones(12)
    keep[[0, 7]] = 0
    whole = recurrence(q, k, v, -g.abs(), torch.ones(12, 2), keep, 1)
    alone = plain_recurrence(q[7:], k[7:], v[7:], -g[7:].abs(), torch.ones(5, 2), keep[7:], 1)
    assert torch.equal(whole[7:], alone)


def test_sinkhorn_gives_doubly_stochastic_matrices() -> None:
    c = plain_sinkhorn(torch.randn(50, 4, 4), 1e-6, 20)
    assert (c.sum(1) - 1).abs().max() < 1e-4
    assert (c.sum(2) - 1).abs().max() < 1e-2
