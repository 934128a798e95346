"""Which PyTorch an engine runs on: the one of its hash-locked list, or one that is there already and recent enough. Imports none."""

import re
from dataclasses import dataclass
from importlib import metadata

# The oldest that the engine's tests have run on, and what nobody but torch needs of the hash-locked list.
LEAST = (2, 11)
_OF_TORCH = re.compile(r"(torch|triton|cuda-[a-z]+|nvidia-[a-z0-9-]+)==")
_NVRTC = re.compile(r"cuda-(bindings|pathfinder)==|nvidia-cuda-nvrtc==")


@dataclass(frozen=True)
class Own:
    """A PyTorch that the Python which runs this has, and the folder it lies in."""

    version: str
    folder: str


def is_recent(version: str) -> bool:
    """`version` as its package tells it; empty for none."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return bool(numbers) and (int(numbers[1]), int(numbers[2])) >= LEAST


def own() -> Own | None:
    """The one of this Python, if it is recent enough and was built for GPUs, and so brings the run-time compiler and its bindings."""
    for found in metadata.distributions(name="torch"):
        if is_recent(found.version) and "+cpu" not in found.version:
            return Own(found.version, str(found.locate_file("")))
    return None


def left_out(lock: str, *, keeps_compiler: bool) -> str:
    """A hash-locked list without torch and what only torch needs; `keeps_compiler` where the one that is there may lack NVRTC."""
    entries = re.split(r"(?m)^(?=\S)", lock)
    return "".join(entry for entry in entries if not _OF_TORCH.match(entry) or (keeps_compiler and _NVRTC.match(entry)))
