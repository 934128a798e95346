"""The safetensors files of one folder as one name -> tensor mapping.

Knows nothing of EXL3, fp8 scales or what a tensor means. Shapes and dtypes come from the file headers, never from a table.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

INDEX = "model.safetensors.index.json"


class WeightError(ValueError):
    """A checkpoint cannot be used. The message names the tensor or file, what was found and what was needed."""


class TensorSource:
    """All tensors of the `*.safetensors` files of a folder. Raises WeightError if files and index disagree."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        listed = _listed(directory / INDEX)
        files = sorted({directory / shard for shard in listed.values()}) if listed else sorted(directory.glob("*.safetensors"))
        if not files:
            raise WeightError(f"{directory}: no *.safetensors file and no {INDEX}; a checkpoint folder needs its weights")
        self._handles: dict[str, Any] = {}
        for path in files:
            self._add(path)
        if listed:
            self._compare(listed)

    def _add(self, path: Path) -> None:
        try:
            handle = safe_open(path, framework="pt")
        except FileNotFoundError:
            raise WeightError(f"{path}: the index names this shard, but it does not exist; fetch it again") from None
        except SafetensorError as error:
            raise WeightError(f"{path}: not a complete safetensors file ({error}); fetch it again") from None
        for name in list(handle.keys()):
            if name in self._handles:
                raise WeightError(f"{name}: stored twice, the second time in {path.name}; keep one")
            self._handles[name] = handle

    def _compare(self, listed: dict[str, str]) -> None:
        missing = sorted(listed.keys() - self._handles.keys())
        unlisted = sorted(self._handles.keys() - listed.keys())
        if missing or unlisted:
            what = [f"{len(missing)} tensors only in {INDEX} (first: {missing[0]})"] if missing else []
            what += [f"{len(unlisted)} tensors only in the shards (first: {unlisted[0]})"] if unlisted else []
            raise WeightError(f"{self.directory}: {' and '.join(what)}; index and shards must list the same tensors")

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._handles))

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    def _handle(self, name: str) -> Any:
        if name not in self._handles:
            raise WeightError(f"{name}: not in {self.directory}; this checkpoint is incomplete or of another architecture")
        return self._handles[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Stored shape, from the header."""
        return tuple(self._handle(name).get_slice(name).get_shape())

    def get(self, name: str) -> Tensor:
        """The tensor as stored, on the CPU. Raises WeightError if it does not exist."""
        return self._handle(name).get_tensor(name)


def _listed(index: Path) -> dict[str, str]:
    """The index's `weight_map`, or nothing if the folder has no index."""
    if not index.exists():
        return {}
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise WeightError(f"{index}: no readable weight_map ({error!r}); fetch the file again") from None
    if not isinstance(listed, dict) or not all(isinstance(shard, str) and "/" not in shard for shard in listed.values()):
        raise WeightError(f"{index}: weight_map must map tensor names to file names in the same folder")
    return listed
