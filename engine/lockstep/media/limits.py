"""How large media may be. Bytes are of the file as sent, pixels of one picture or frame as stored in it, times in seconds."""

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Of one kind: `count`, `all_bytes` and `all_tokens` a request. `wait_s` ends a decoder from outside,
    `cpu_s` and `memory_bytes` from inside.

    `tokens` and `frames` bound what the model sees; `seconds` and `rate` how long and how dense a clip may be.
    """

    count: int
    file_bytes: int
    all_bytes: int
    all_tokens: int
    side: int
    pixels: int
    tokens: int
    memory_bytes: int
    cpu_s: int
    wait_s: float
    frames: int = 1
    seconds: int = 0
    rate: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """What a checkpoint's processor asks for: `block` pixels a side of a token, (least, most) tokens of a picture and of a whole clip.

    Clips are sampled at `rate` frames a second, `frames` at most.
    """

    block: int
    tokens: dict[str, tuple[int, int]]
    rate: float
    frames: int


LIMITS = {
    "picture": MediaLimits(
        count=50, file_bytes=10 * MIB, all_bytes=64 * MIB, all_tokens=65536, side=8192, pixels=16 * MIB, tokens=8000,
        memory_bytes=1024 * MIB, cpu_s=5, wait_s=10.0,
    ),
    "clip": MediaLimits(
        count=4, file_bytes=64 * MIB, all_bytes=96 * MIB, all_tokens=32768, side=4096, pixels=9 * MIB, tokens=16384,
        memory_bytes=2048 * MIB, cpu_s=20, wait_s=30.0, frames=128, seconds=300, rate=120,
    ),
}  # fmt: skip
