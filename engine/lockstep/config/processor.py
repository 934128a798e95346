"""The published `processor_config.json`: how pictures and clips become pixels. Standard library only; knows no decoder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lockstep.config.fields import Fields, Within, read_object
from lockstep.config.model import VisionConfig

_BICUBIC = 3
_RGB = 3


@dataclass(frozen=True, slots=True)
class Normalisation:
    """`(value / 255 - mean) / deviation` for red, green and blue."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProcessorConfig:
    """`block` is the side in pixels of what becomes one token; least and most tokens of a picture, and of all frame pairs of a clip.

    Clips are sampled at `fps` frames a second, `max_frames` at most.
    """

    pixels: Normalisation
    block: int
    picture: tuple[int, int]
    clip: tuple[int, int]
    fps: Annotated[float, Within(0.1, 1000.0)]
    max_frames: int


def read_processor_config(directory: Path, vision: VisionConfig) -> ProcessorConfig:
    """Read `processor_config.json` of a checkpoint folder with vision. Raises ConfigError naming field, found and needed."""
    top = Fields(read_object(directory / "processor_config.json"), "processor_config.json")
    picture, clip = top.inner("image_processor"), top.inner("video_processor")
    for part in (picture, clip):
        part.constant("patch_size", vision.patch_size, required=True)
        part.constant("temporal_patch_size", vision.temporal_patch_size, required=True)
        part.constant("merge_size", vision.spatial_merge_size, required=True)
        for name, only in {"patch_expand_factor": 1, "resample": _BICUBIC, "do_rescale": True, "do_normalize": True}.items():
            part.constant(name, only)
    pixels = _normalisation(picture)
    if _normalisation(clip) != pixels:
        raise clip.refuse("image_mean", "mean and deviation of the image processor")
    block = vision.patch_size * vision.spatial_merge_size
    return clip.read(ProcessorConfig, pixels=pixels, block=block, picture=_budget(picture), clip=_budget(clip))


def _normalisation(part: Fields) -> Normalisation:
    means, deviations = (part.numbers(name, _RGB, low, 1.0) for name, low in (("image_mean", 0.0), ("image_std", 1e-3)))
    return Normalisation(means, deviations)


def _budget(part: Fields) -> tuple[int, int]:
    least = part.integer("min_image_tokens")
    return least, part.integer("max_image_tokens", low=least)
