"""The tiny checkpoint: made from a seed, loaded back, shipped within its bounds."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from checkpoints import Sizes, make_tiny
from checkpoints.layout import drafter_slots, model_slots
from checkpoints.sizes import SPECIAL_TOKENS
from lockstep.config.drafter import read_drafter_config
from lockstep.config.generation import read_generation_config
from lockstep.kernels.exl3 import Exl3Matrix, decode_outer
from lockstep.weights import Checkpoint, TensorSource

torch.set_num_threads(1)
EMBEDDED = Path(__file__).parents[2] / "embedded"
TEMPLATE = Path(__file__).parents[2] / "engine" / "checkpoints" / "chat_template.jinja"
# One sparse layer and the MTP layer with one expert each: six matrices of 128 x 128 keep the search short.
SMALL = Sizes(hidden=128, layers=4, dense_layers=3, experts=1, experts_per_token=1, drafter_taps=(1, 3), vision_depth=1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny")
    make_tiny(directory, 3, SMALL)
    return directory


def digests(directory: Path) -> dict[str, str]:
    files = [path for path in directory.rglob("*") if path.is_file() and "make" not in path.relative_to(directory).parts]
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_weights(made: Path, tmp_path: Path) -> None:
    make_tiny(tmp_path, 3, SMALL)
    assert digests(made) == digests(tmp_path)
    make_tiny(tmp_path, 4, replace(SMALL, layers=3, drafter_taps=(1,)))
    assert digests(made)["drafter/model.safetensors"] != digests(tmp_path)["drafter/model.safetensors"]


def check_contents(directory: Path) -> None:
    """Every tensor of the layout loads back with its type, and no other is stored."""
    checkpoint = Checkpoint(directory)
    expected = set()
    for slot in model_slots(checkpoint.config):
        prefix = slot.name.removesuffix(".weight")
        if slot.exl3:
            matrix = checkpoint.matrix(prefix, slot.shape[1], slot.shape[0])
            assert isinstance(matrix, Exl3Matrix)
            assert (matrix.bits, matrix.codebook) == (4, "mcg")
            expected |= {f"{prefix}.{leaf}" for leaf in ("trellis", "suh", "svh", "mcg")}
        else:
            assert checkpoint.tensor(slot.name, slot.shape).dtype == slot.dtype
            expected.add(slot.name)
    assert set(checkpoint.source.names()) == expected
    drafter = read_drafter_config(directory / "drafter", checkpoint.config.text)
    stored = TensorSource(directory / "drafter")
    assert {slot.name: slot.shape for slot in drafter_slots(drafter)} == {name: stored.shape(name) for name in stored.names()}


def check_manifest(directory: Path) -> None:
    listed = json.loads((directory / "manifest.json").read_text())["files"]
    found = digests(directory)
    assert set(listed) == {name for name in found if name.endswith((".json", ".jinja", ".safetensors"))} - {"manifest.json"}
    for name, entry in listed.items():
        assert entry == {"sha256": found[name], "bytes": (directory / name).stat().st_size}, name


def check_tokenizer(directory: Path) -> None:
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    config = Checkpoint(directory).config
    first = tokenizer.token_to_id(SPECIAL_TOKENS[0])
    assert first is not None
    assert [tokenizer.token_to_id(text) for text in SPECIAL_TOKENS] == list(range(first, first + len(SPECIAL_TOKENS)))
    assert tokenizer.get_vocab_size() == first + len(SPECIAL_TOKENS) <= config.text.vocab_size
    stops = tuple(tokenizer.token_to_id(text) for text in ("<|endoftext|>", "<|user|>", "<|observation|>"))
    assert config.text.eos_token_ids == read_generation_config(directory).eos_token_ids == stops
    assert config.media is not None
    assert config.media.image == tokenizer.token_to_id("<|image|>")
    for effort in (" Low", " High", " Max"):
        assert len(tokenizer.encode(effort).ids) == 1
    assert tokenizer.encode("x 1234").tokens[-4:] == ["1", "2", "3", "4"]
    text = "[gMASK]<sop><|user|>é 漢字 🙂\t\r\n\x00 a  b<tool_call>f</tool_call>"
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.decode(ids).endswith("<tool_call>f</tool_call>")


def test_a_made_checkpoint_loads_back(made: Path) -> None:
    check_contents(made)
    check_manifest(made)
    check_tokenizer(made)


def test_the_shipped_checkpoint_loads_back() -> None:
    check_contents(EMBEDDED)
    check_manifest(EMBEDDED)
    check_tokenizer(EMBEDDED)


def test_the_shipped_folder_stays_within_twelve_mebibytes() -> None:
    files = [path for path in EMBEDDED.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) <= 12 << 20


def test_the_shipped_template_is_the_one_that_is_tested() -> None:
    assert (EMBEDDED / "chat_template.jinja").read_bytes() == TEMPLATE.read_bytes()


def test_transformers_saves_the_same_trunk_and_vision_tensors(made: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = Checkpoint(made).config
    values = json.loads((made / "config.json").read_text())
    del values["quantization_config"]
    transformers.Glm5NextForConditionalGeneration(transformers.Glm5NextConfig(**values)).save_pretrained(tmp_path)
    stored = TensorSource(tmp_path)
    trunk = [slot for slot in model_slots(config) if f".layers.{config.text.num_hidden_layers}." not in slot.name]
    assert {slot.name: slot.shape for slot in trunk} == {name: stored.shape(name) for name in stored.names()}


def test_encoded_experts_lie_near_the_weights_they_came_from(made: Path) -> None:
    checkpoint = Checkpoint(made)
    expert = next(slot for slot in model_slots(checkpoint.config) if slot.exl3)
    matrix = checkpoint.matrix(expert.name.removesuffix(".weight"), expert.shape[1], expert.shape[0])
    assert isinstance(matrix, Exl3Matrix)
    weight = decode_outer(matrix.trellis, matrix.suh, matrix.svh, matrix.codebook)
    assert weight.std().item() == pytest.approx(expert.std, rel=0.05)
