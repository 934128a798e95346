"""Pictures among text: logits are the reference's, slices and company change no bit, other pixels make another prompt."""

from __future__ import annotations

import asyncio
import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fixtures.engines import GREEDY, SAMPLED, ask, serve
from lockstep.cache import Sequence, StateSlots, TokenPool
from lockstep.channel.client import EngineClient
from lockstep.config.processor import Normalisation
from lockstep.core.types import EngineRequest, Picture
from lockstep.layers.params import Params
from lockstep.model.glm import GlmModel
from lockstep.model.vision import VisionTower
from lockstep.run.pictures import PictureRows
from lockstep.sched.trace import Trace
from lockstep.weights import Checkpoint

transformers = pytest.importorskip("transformers")
torch.set_num_threads(1)

TOLERANCE = 1e-4
PLAIN = Normalisation((0.5, 0.4, 0.3), (0.25, 0.25, 0.25))
IMAGE, STARTS = 300, (9, 70, 131)
SIZES = ((112, 112), (140, 224), (84, 56))
KINDS = ["linear_attention", "linear_attention", "linear_attention", "deepseek_sparse_attention"]
TEXT = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "v_head_dim": 24,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "index_topk": 32, "index_kpool": 4, "index_head_dim": 16, "index_n_heads": 8,
    "layer_types": KINDS, "mlp_layer_types": ["dense"] + ["sparse"] * 3, "swiglu_limit": 2.0, "pad_token_id": 0, "eos_token_id": [1],
    "linear_attn_config": {"num_heads": 4, "head_dim": 16, "short_conv_kernel_size": 4, "gate_lower_bound": -5.0},
}  # fmt: skip
VISION = {
    "depth": 2, "hidden_size": 64, "num_heads": 4, "intermediate_size": 96, "out_hidden_size": 64, "projection_intermediate_size": 128,
}  # fmt: skip
SCALES = {"A_log": (0, 0.3), "dt_bias": (-1, 1.0), "base": (0, 0.5), "scale": (0.6, 0.1), "fn": (0, 0.1), "bias": (0, 0.1)}


def picture(start: int, height: int, width: int, seed: int, frames: int = 1) -> Picture:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (frames, height, width, 3), dtype=torch.uint8, generator=generator).numpy().tobytes()
    digest = hashlib.sha256(f"{frames} {height} {width} ".encode() + pixels).hexdigest()
    return Picture(start, height * width // 784, frames, height, width, digest, pixels)


PICTURES = tuple(picture(start, *size, seed) for seed, (start, size) in enumerate(zip(STARTS, SIZES, strict=True)))


def prompt(length: int, placeholder: int, pictures: tuple[Picture, ...], top: int = 290) -> tuple[int, ...]:
    ids = torch.randint(3, top, (length,), generator=torch.Generator().manual_seed(2)).tolist()
    for one in pictures:
        ids[one.start : one.start + one.tokens] = [placeholder] * one.tokens
    return tuple(ids)


class Reference:
    """A random checkpoint with vision, and its logits for one prompt with three pictures."""

    def __init__(self, folder: Path) -> None:
        generator = torch.Generator().manual_seed(1)
        marks = ("image", "video", "image_start", "image_end", "video_start", "video_end")
        ids = {f"{mark}_token_id": IMAGE + place for place, mark in enumerate(marks)}
        config = transformers.Glm5NextConfig(text_config=TEXT, vision_config=VISION, **ids)
        model = transformers.Glm5NextForConditionalGeneration(config).eval()
        with torch.no_grad():
            for name, values in [*model.named_parameters(), *model.named_buffers()]:
                if "inv_freq" in name:
                    continue
                leaf = name.split(".")[-1]
                spread = (
                    1.0 if "embed_tokens" in name else 0.5 if "conv1d" in name else 1 / math.sqrt(values[0].numel() if values.ndim else 1)
                )
                mean, deviation = SCALES.get(leaf, (1, 0.1) if values.ndim == 1 else (0, spread))
                values.copy_(mean + deviation * torch.randn(values.shape, generator=generator))
        model.save_pretrained(folder)
        self.checkpoint = Checkpoint(folder)
        self.tower = VisionTower(self._params(), self.checkpoint.config.vision, PLAIN)  # pyright: ignore[reportArgumentType]
        self.ids = prompt(171, IMAGE, PICTURES)
        self.logits = self._logits(model)
        self.model = GlmModel.load(self.checkpoint, self.checkpoint.config, "cpu")
        self.pool, self.slots = (
            TokenPool(self.checkpoint.config.text, 8, "cpu", torch.float32),
            StateSlots(self.checkpoint.config.text, 1, "cpu"),
        )
        self.model.attach(self.pool, self.slots)

    def _params(self) -> Params:
        return Params(self.checkpoint, "model.visual.", torch.device("cpu"), torch.float32)

    def _logits(self, model: Any) -> torch.Tensor:
        shape = [torch.frombuffer(bytearray(one.pixels), dtype=torch.uint8).view(1, one.height, one.width, 3) for one in PICTURES]
        values = torch.cat([self.tower.patches(frames) for frames in shape])
        grids = torch.tensor([[1, one.height // 14, one.width // 14] for one in PICTURES])
        kinds = torch.tensor([[int(token == IMAGE) for token in self.ids]])
        ids = torch.tensor([self.ids])
        with torch.no_grad():
            given = {"pixel_values": values, "image_grid_thw": grids, "mm_token_type_ids": kinds}
            return model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **given).logits[0].float()

    def run(self, cuts: list[int]) -> tuple[torch.Tensor, str]:
        """Logits of every row and the state hash, with the prompt in slices."""
        self.slots.reset(0)
        sequence, rows, parts = Sequence(0, [5, 2, 7, 0]), PictureRows(self.tower, self.model), []
        request = EngineRequest("r", self.ids, GREEDY, 1, pictures=PICTURES)
        for start, end in zip([0, *cuts], [*cuts, len(self.ids)], strict=True):
            taps = self.model.run_prompt(sequence, self.ids[start:end], [3], rows.within(request, start, end)).taps[0]
            parts.append(self.model.head(self.model.norm(taps)))
        assert rows.computed == len(PICTURES)
        return torch.cat(parts), self.model.state_hash(sequence)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("pictures"))


def test_a_prompt_with_pictures_has_the_references_logits(reference: Reference) -> None:
    found, _ = reference.run([])
    assert (found - reference.logits).abs().max().item() <= TOLERANCE


def test_slices_that_cut_pictures_change_no_bit(reference: Reference) -> None:
    whole, state = reference.run([])
    for cuts in ([64], [128], [64, 128]):
        logits, other = reference.run(cuts)
        assert torch.equal(logits, whole)
        assert other == state


def test_prompts_that_differ_in_pixels_only_share_no_state_behind_them() -> None:
    ids = prompt(200, IMAGE, PICTURES[:1])
    one = EngineRequest("a", ids, GREEDY, 1, pictures=PICTURES[:1])
    other = replace(one, pictures=(picture(PICTURES[0].start, 112, 112, seed=77),))
    later = replace(one, pictures=(replace(picture(100, 112, 112, seed=77), start=100),), prompt_ids=prompt(200, IMAGE, PICTURES[:1]))
    assert Trace(one).chain[1] != Trace(other).chain[1]
    assert Trace(one).shared_tokens(Trace(one)) == 200
    assert Trace(one).shared_tokens(Trace(other)) == 0
    assert one.identity[: STARTS[0]] == other.identity[: STARTS[0]] == later.identity[: STARTS[0]]
    assert one.identity[STARTS[0] + 16 :] == other.identity[STARTS[0] + 16 :]


def embedded_requests() -> list[EngineRequest]:
    """Two requests of one text with one picture, one of another picture, and text without any; the middle of the vocabulary only."""
    placeholder, red, blue = 2281, picture(20, 112, 112, seed=5), picture(20, 112, 112, seed=6)
    ids = prompt(100, placeholder, (red,), 2000)
    asked = EngineRequest("red", ids, SAMPLED, 12, pictures=(red,), ignore_eos=True)
    return [asked, replace(asked, id="blue", pictures=(blue,)), replace(asked, id="again"), replace(asked, id="none", pictures=())]


async def one_by_one(client: EngineClient) -> list[Any]:
    return [await ask(client, one) for one in embedded_requests()]


async def twice(client: EngineClient) -> tuple[list[Any], list[Any]]:
    """One after the other, then all at once."""
    return await one_by_one(client), list(await asyncio.gather(*(ask(client, one) for one in embedded_requests())))


def test_pictures_alone_beside_others_and_from_kept_states_give_the_same_reply() -> None:
    red, blue, again, none = alone = serve(one_by_one, "--kept-gib", "0")  # pyright: ignore[reportGeneralTypeIssues]
    assert red == again
    assert len({red, blue, none}) == 3
    assert serve(twice, "--drafter", "mtp", "--prompt-slice", "64") == (alone, alone)


def test_two_ranks_see_the_same_pictures() -> None:
    alone, together = serve(twice, "--ranks", "2")  # pyright: ignore[reportGeneralTypeIssues]
    assert alone == together
    assert alone[0] == alone[2] != alone[1]


def test_rows_are_kept_by_content_within_a_namespace_and_forgotten_by_age(reference: Reference, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.run import pictures

    monkeypatch.setattr(pictures, "MOST_ROWS", 60)
    rows = PictureRows(reference.tower, reference.model)
    one = EngineRequest("r", reference.ids, GREEDY, 1, pictures=PICTURES, namespace="a")
    first = rows.within(one, 0, 171)
    assert [at for at, _ in first] == list(STARTS)
    assert rows.computed == 3
    again = rows.within(one, 64, 100)
    assert rows.computed == 3
    assert torch.equal(again[0][1], first[1][1][:30])
    rows.within(replace(one, namespace="b"), 0, 64)
    assert rows.computed == 4
    assert torch.equal(rows.within(one, 0, 64)[0][1], first[0][1])
    assert rows.computed == 5
