"""Checkpoint folders: safetensors, index, EXL3 groups and block-scaled fp8, and every way they are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from lockstep.weights import TensorSource, WeightError
from lockstep.weights.checkpoint import read_plain
from lockstep.weights.exl3 import is_exl3, read_exl3

torch.set_num_threads(1)
P = "layers.5.mlp.experts.0.up_proj"
Tensors = dict[str, Tensor]


def source(directory: Path, tensors: Tensors) -> TensorSource:
    save_file({name: value.contiguous() for name, value in tensors.items()}, directory / "model.safetensors")
    return TensorSource(directory)


def marker(value: int) -> Tensor:
    return torch.tensor(value - (1 << 32), dtype=torch.int32)


def group(bits: float = 4, codebook: str = "mcg") -> Tensors:
    words = torch.randint(-32768, 32768, (8, 16, int(16 * bits)), generator=torch.Generator().manual_seed(1)).to(torch.int16)
    tensors = {f"{P}.trellis": words, f"{P}.suh": torch.full((128,), 0.5).half(), f"{P}.svh": torch.ones(256).half()}
    marks = {"mcg": 0xCBAC1FED, "mul1": 0x83DCD12D}
    return tensors | ({f"{P}.{codebook}": marker(marks[codebook])} if codebook in marks else {})


@pytest.mark.parametrize(("bits", "codebook"), [(4, "mcg"), (2, "3inst"), (3.5, "mul1"), (8, "mul1")])
def test_a_group_gives_its_own_width_and_codebook(tmp_path: Path, bits: float, codebook: str) -> None:
    tensors = source(tmp_path, group(bits, codebook))
    assert is_exl3(tensors, P)
    matrix = read_exl3(tensors, P, 128, 256)
    assert (matrix.bits, matrix.codebook, matrix.k, matrix.n) == (bits, codebook, 128, 256)
    assert torch.equal(matrix.trellis, group(bits, codebook)[f"{P}.trellis"])


def test_packed_signs_of_old_files_become_scales(tmp_path: Path) -> None:
    tensors = group()
    del tensors[f"{P}.suh"], tensors[f"{P}.svh"]
    tensors[f"{P}.su"] = torch.tensor([0b101, 0, 0, 0, 0, 0, 0, -32768], dtype=torch.int16)
    tensors[f"{P}.sv"] = torch.zeros(16, dtype=torch.int16)
    matrix = read_exl3(source(tmp_path, tensors), P, 128, 256)
    assert torch.nonzero(matrix.suh == -1).flatten().tolist() == [0, 2, 127]
    assert bool((matrix.svh == 1).all())


def test_a_plain_module_is_no_group(tmp_path: Path) -> None:
    assert not is_exl3(source(tmp_path, {f"{P}.weight": torch.zeros(2, 2)}), P)


def put(**changes: Tensor | None) -> Callable[[Tensors], Tensors]:
    def change(tensors: Tensors) -> Tensors:
        tensors = tensors | {f"{P}.{leaf}": value for leaf, value in changes.items() if value is not None}
        return {name: value for name, value in tensors.items() if changes.get(name.removeprefix(f"{P}."), 0) is not None}

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(mul1=marker(0x83DCD12D)), "found the markers mcg and mul1, needed at most one"),
        (put(mcg=marker(0xCBAC1FEE)), "mcg: found multiplier 0xcbac1fee, this codebook has 0xcbac1fed"),
        (put(mcg=torch.tensor(1.0)), r"mcg: found torch.float32 of 1 values, needed one int32"),
        (put(mcg=torch.zeros(2, dtype=torch.int32)), r"mcg: found torch.int32 of 2 values"),
        (put(weight=torch.zeros(2)), "found both a trellis and a weight"),
        (put(trellis=torch.zeros(8, 16, 40, dtype=torch.int16)), "trellis: found 2.5 bits with codebook mcg, half widths need mul1"),
        (put(trellis=torch.zeros(8, 16, 8, dtype=torch.int16)), "trellis: found a last axis of 8"),
        (put(trellis=torch.zeros(8, 16, 64)), "trellis: found torch.float32 with 3 axes, needed int16 with 3"),
        (put(trellis=torch.zeros(8, 1024, dtype=torch.int16)), "trellis: found torch.int16 with 2 axes"),
        (put(trellis=torch.zeros(4, 16, 64, dtype=torch.int16)), "trellis: found 64 inputs and 256 outputs, needed multiples of 128"),
        (
            put(trellis=torch.zeros(16, 16, 64, dtype=torch.int16), suh=torch.ones(256).half()),
            "trellis: found 256 inputs and 256 outputs, the model needs 128 and 256",
        ),
        (put(suh=None), "found neither of suh and su, needed exactly one"),
        (put(svh=None), "found neither of svh and sv, needed exactly one"),
        (put(su=torch.zeros(8, dtype=torch.int16)), "found suh and su of suh and su, needed exactly one"),
        (put(suh=torch.ones(256).half()), r"suh: found torch.float16 \(256,\), needed torch.float16 \(128,\)"),
        (put(suh=torch.ones(128)), "suh: found torch.float32"),
        (put(svh=torch.full((256,), torch.inf).half()), "svh: found values that are not finite"),
        (put(svh=None, sv=torch.zeros(16)), "sv: found torch.float32 with 1 axes, needed int16 with 1"),
        (put(bias=torch.ones(128).half()), r"bias: found torch.float16 \(128,\)"),
        (put(bias=torch.full((256,), torch.nan).half()), "bias: found values that are not finite"),
    ],
)
def test_a_malformed_group_is_refused(tmp_path: Path, change: Callable[[Tensors], Tensors], words: str) -> None:
    with pytest.raises(WeightError, match=words):
        read_exl3(source(tmp_path, change(group())), P, 128, 256)


def test_a_group_without_its_trellis_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match="found mcg, suh, svh without a trellis"):
        is_exl3(source(tmp_path, put(trellis=None)(group())), P)


def test_block_scaled_fp8_is_value_times_scale(tmp_path: Path) -> None:
    values = torch.linspace(-3, 3, 130 * 200).view(130, 200).to(torch.float8_e4m3fn)
    scale = torch.tensor([[0.5, 2.0], [3.0, 0.25]])
    found = read_plain(source(tmp_path, {"w": values, "w_scale_inv": scale}), "w", (130, 200))
    assert found.dtype == torch.float32
    for row, column in [(0, 0), (127, 128), (128, 127), (129, 199)]:
        assert found[row, column] == values[row, column].float() * scale[row // 128, column // 128]


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"v": torch.zeros(2)}, "w: not in .* incomplete or of another architecture"),
        ({"w": torch.zeros(3, 2)}, r"w: found shape \(3, 2\), the model needs \(2, 3\)"),
        ({"w": torch.zeros(2, 3, dtype=torch.int8)}, "w: found torch.int8, needed bf16"),
        ({"w": torch.zeros(2, 3).to(torch.float8_e4m3fn)}, "w: found fp8 values without w_scale_inv"),
        ({"w": torch.zeros(2, 3).to(torch.float8_e4m3fn), "w_scale_inv": torch.ones(2, 1)}, r"w_scale_inv: found .* \(2, 1\), needed"),
        ({"w": torch.zeros(2, 3), "w_scale_inv": torch.ones(1, 1)}, "w: found torch.float32 with w_scale_inv beside it"),
    ],
)
def test_a_plain_tensor_that_cannot_be_meant_is_refused(tmp_path: Path, tensors: Tensors, words: str) -> None:
    with pytest.raises(WeightError, match=words):
        read_plain(source(tmp_path, tensors), "w", (2, 3))


def shards(directory: Path, listed: dict[str, str]) -> None:
    save_file({"a": torch.zeros(1)}, directory / "one.safetensors")
    save_file({"b": torch.ones(1), "c": torch.ones(2)}, directory / "two.safetensors")
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))


COMPLETE = {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}


def test_shards_read_as_one_folder(tmp_path: Path) -> None:
    shards(tmp_path, COMPLETE)
    found = TensorSource(tmp_path)
    assert found.names() == ("a", "b", "c")
    assert found.shape("c") == (2,)
    assert found.get("b").item() == 1


@pytest.mark.parametrize(
    ("listed", "words"),
    [
        (COMPLETE | {"d": "two.safetensors"}, r"1 tensors only in model.safetensors.index.json \(first: d\)"),
        ({"a": "one.safetensors", "b": "two.safetensors"}, r"1 tensors only in the shards \(first: c\)"),
        (COMPLETE | {"d": "three.safetensors"}, "three.safetensors: the index names this shard, but it does not exist"),
        (COMPLETE | {"d": "../three.safetensors"}, "weight_map must map tensor names to file names in the same folder"),
    ],
)
def test_index_and_shards_must_agree_both_ways(tmp_path: Path, listed: dict[str, str], words: str) -> None:
    shards(tmp_path, listed)
    with pytest.raises(WeightError, match=words):
        TensorSource(tmp_path)


def test_an_unreadable_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(WeightError, match="no readable weight_map"):
        TensorSource(tmp_path)


def test_a_tensor_stored_twice_is_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_file({"a": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(WeightError, match=r"a: stored twice, the second time in two.safetensors"):
        TensorSource(tmp_path)


def test_a_truncated_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightError, match=r"no \*\.safetensors file"):
        TensorSource(tmp_path)
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(1000)}, path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(WeightError, match="not a complete safetensors file"):
        TensorSource(tmp_path)
