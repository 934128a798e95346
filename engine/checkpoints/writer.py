"""Writes a checkpoint folder from plain weights: experts become EXL3, the rest its published type, and a manifest names each file.

Knows nothing of how the weights came about: random ones and trained ones go the same way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from checkpoints.exl3_encode import encode_matrix
from checkpoints.layout import Slot, drafter_slots, model_slots
from checkpoints.sizes import Sizes, drafter_config, generation_config, model_config, processor_config
from checkpoints.tokenizer import tokenizer_config
from lockstep.config.drafter import parse_drafter_config
from lockstep.config.model import parse_model_config
from lockstep.kernels.exl3 import MULTIPLIERS, Exl3Matrix

CODEBOOK, BITS = "mcg", 4
MANIFEST = "manifest.json"

Draw = Callable[[Slot], Tensor | Exl3Matrix]


def write_checkpoint(directory: Path, size: Sizes, tokenizer: str, draw: Draw, draw_drafter: Draw, seed: int) -> None:
    """Write target, drafter, tokenizer, template and manifest into `directory`, which is made if needed.

    `draw` gives the plain value of a target tensor, `draw_drafter` that of a drafter tensor; both of the slot's shape, on the
    device that shall encode. An EXL3 slot may also come encoded already. `tokenizer` is the text of tokenizer.json, `seed` chooses the
    encoder's signs. Raises ValueError for a value of a wrong shape.
    """
    config = parse_model_config(model_config(size))
    drafter = parse_drafter_config(drafter_config(size), config.text)
    (directory / "drafter").mkdir(parents=True, exist_ok=True)
    _write_tensors(directory / "model.safetensors", model_slots(config), draw, seed)
    _write_tensors(directory / "drafter" / "model.safetensors", drafter_slots(drafter), draw_drafter, seed)
    _write_json(directory / "config.json", model_config(size))
    _write_json(directory / "generation_config.json", generation_config(size))
    _write_json(directory / "processor_config.json", processor_config())
    _write_json(directory / "tokenizer_config.json", tokenizer_config(size))
    _write_json(directory / "drafter" / "config.json", drafter_config(size))
    (directory / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    template = files("checkpoints").joinpath("chat_template.jinja").read_text(encoding="utf-8")
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    write_manifest(directory, seed)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _write_tensors(path: Path, slots: Iterable[Slot], draw: Draw, seed: int) -> None:
    tensors: dict[str, Tensor] = {}
    for slot in slots:
        value = draw(slot)
        shape = (value.n, value.k) if isinstance(value, Exl3Matrix) else tuple(value.shape)
        if shape != slot.shape:
            raise ValueError(f"{slot.name}: found shape {shape}, needed {slot.shape}")
        if slot.exl3:
            tensors.update(_exl3(slot, value, seed))
        elif isinstance(value, Exl3Matrix):
            raise ValueError(f"{slot.name}: found an EXL3 matrix, needed a plain {slot.dtype} tensor")
        else:
            tensors[slot.name] = value.to("cpu", slot.dtype).contiguous()
    save_file(tensors, path, metadata={"format": "pt"})
    path.chmod(0o644)  # the library writes for the owner only; the folder's other files are readable by all


def _exl3(slot: Slot, value: Tensor | Exl3Matrix, seed: int) -> dict[str, Tensor]:
    matrix = value if isinstance(value, Exl3Matrix) else encode_matrix(value.T, BITS, CODEBOOK, generator(seed, slot.name))
    if (matrix.codebook, matrix.bits) != (CODEBOOK, BITS):
        raise ValueError(f"{slot.name}: found {matrix.bits} bits of codebook {matrix.codebook}, needed {BITS} of {CODEBOOK}")
    matrix = matrix.to("cpu")
    prefix = slot.name.removesuffix(".weight")
    marker = torch.tensor(MULTIPLIERS[CODEBOOK], dtype=torch.int64).to(torch.int32)
    return {f"{prefix}.trellis": matrix.trellis, f"{prefix}.suh": matrix.suh, f"{prefix}.svh": matrix.svh, f"{prefix}.{CODEBOOK}": marker}


def generator(seed: int, name: str) -> torch.Generator:
    """A CPU generator for one tensor: its numbers depend on the seed and the name, not on the order of tensors."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


def write_manifest(directory: Path, seed: int) -> None:
    """`manifest.json`: SHA-256 and size in bytes of every file the checkpoint consists of, by relative path."""
    names = sorted(
        str(path.relative_to(directory))
        for folder in (directory, directory / "drafter")
        for path in folder.iterdir()
        if path.suffix in (".json", ".safetensors", ".jinja") and path.name != MANIFEST
    )
    entries = {}
    for name in names:
        data = (directory / name).read_bytes()
        entries[name] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    _write_json(directory / MANIFEST, {"seed": seed, "files": entries})
