"""Names what made a state's bits and shape, so that only an engine that would make the same ones takes it over. Knows no states."""

import hashlib
import os
from pathlib import Path

import numpy as np
import torch

import lockstep
from lockstep.config.serving import ServingOptions

# Variables by which libraries and kernels choose how to compute.
_LIBRARIES = ("ATEN_", "CUBLAS", "CUDNN", "MKL_", "NPY_", "NVIDIA_TF32", "ONEDNN_", "OPENBLAS", "PYTORCH_", "TORCH_", "TRITON_")
_VARIABLES = (*_LIBRARIES, "LOCKSTEP_")
_SOURCES = (".py", ".cu", ".cuh", ".cpp", ".h")


def origin(options: ServingOptions, build: str) -> str:
    """16 hex digits over `build` (engine version, ranks, forms, the checkpoint's descriptions), the engine's own source, libraries, the
    processor's or device's kind, variables that these obey, and which weights lie in the folders of checkpoint and drafter (name, size,
    time of writing).
    """
    told = hashlib.sha256(f"{build} {options.drafter} {np.__version__} {torch.__version__} {_processor(options.device)}".encode())
    told.update(" ".join(sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(_VARIABLES))).encode())
    for path in sorted(Path(lockstep.__file__).parent.rglob("*")):
        if path.suffix in _SOURCES:
            told.update(path.read_bytes())
    for folder in (options.model, Path(options.drafter)):
        for path in sorted(folder.glob("*.safetensors")):
            stat = path.stat()
            told.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns} ".encode())
    return told.hexdigest()[:16]


def _processor(device: str) -> str:
    if device == "cuda":
        return " ".join(torch.cuda.get_device_name(at) for at in range(torch.cuda.device_count()))
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return " ".join([torch.backends.cpu.get_cpu_capability(), *(line for line in lines if line.startswith("model name"))][:2])
