"""A process that decodes one file and ends: `python -m pixels picture|clip`. The only importer of Pillow and PyAV.

It locks itself in before it reads a byte. In: an order, then the file. Out: the level of the lock, then a head and raw pixels, or an error.
Every head is JSON behind 4 bytes of length.
"""

import importlib
import io
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from PIL import GifImagePlugin, Image, ImageOps, JpegImagePlugin, MpoImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin

from lockstep.media.limits import LIMITS
from pixels.canvas import Canvas, canvas, sampled_frames
from pixels.sandbox import enter

# These would load on first use, which comes after the lock.
_LOADED = (GifImagePlugin, JpegImagePlugin, MpoImagePlugin, PngImagePlugin, TiffImagePlugin, WebPImagePlugin)
_CLIP_MODULES = ("av", "av.audio.stream", "av.video.stream", "av.subtitles.stream", "av.video.reformatter")
_PICTURES = ("JPEG", "PNG", "WEBP", "GIF")
_CODECS = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "libdav1d"})
_DEFAULT_RATE = 24.0
_WHITE = (255, 255, 255, 255)


class Unusable(Exception):
    """The file cannot be used. The text goes to whoever sent it."""


def main(kind: str) -> None:
    """Serve one order on standard input and output."""
    if kind == "clip":
        for name in _CLIP_MODULES:
            importlib.import_module(name)
    limits = LIMITS[kind]
    _tell({"level": enter(limits.memory_bytes, limits.cpu_s)})
    order = json.loads(_read(int.from_bytes(_read(4), "big")))
    data = _read(order["size"])
    try:
        head, frames = _picture(data, order) if kind == "picture" else _clip(data, order)
    except Unusable as error:
        _tell({"error": str(error)})
    except MemoryError:
        _tell({"error": "decoding it takes too much memory"})
    except Exception as error:  # decoders raise types of their own for broken files
        _tell({"error": f"it cannot be decoded ({type(error).__name__})"})
    else:
        _tell(head)
        for frame in frames:
            _write(frame)


def _picture(data: bytes, order: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
    with Image.open(io.BytesIO(data), formats=_PICTURES) as image:
        _check_size("picture", image.width, image.height)
        plan = _canvas(_upright_sides(image), order, 2)
        frame = _laid_out(_opaque(_upright(image)), plan)
    return {"frames": 1, "height": plan.height, "width": plan.width, "seconds": []}, [frame]


def _check_size(kind: str, width: int, height: int) -> None:
    limits = LIMITS[kind]
    if max(width, height) > limits.side or width * height > limits.pixels:
        raise Unusable(f"it has {width} x {height} pixels; needed: at most {limits.side} a side and {limits.pixels} in all")


def _upright_sides(image: Image.Image) -> tuple[int, int]:
    """Height and width once the camera's turn is undone."""
    return (image.width, image.height) if _turn(image) >= 5 else (image.height, image.width)


def _turn(image: Image.Image) -> int:
    try:
        turn = image.getexif().get(0x0112, 1)
    except Exception:  # a broken note beside a good picture
        return 1
    return turn if isinstance(turn, int) and 1 <= turn <= 8 else 1


def _upright(image: Image.Image) -> Image.Image:
    return ImageOps.exif_transpose(image) if _turn(image) > 1 else image


def _opaque(image: Image.Image) -> Image.Image:
    """RGB of 8 bits; what can be seen through lies on white."""
    if image.mode.startswith("I"):
        image = image.convert("I").point(lambda value: value / 256).convert("L")
    if image.mode in ("RGBA", "RGBa", "LA", "La", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, _WHITE), image).convert("RGB")
    return image.convert("RGB")


def _canvas(sides: tuple[int, int], order: dict[str, Any], frames: int) -> Canvas:
    try:
        return canvas(*sides, order["block"], order["least"], order["most"], frames)
    except ValueError as error:
        raise Unusable(f"it does not fit: {error}") from None


def _laid_out(image: Image.Image, plan: Canvas) -> bytes:
    content = (plan.content_width, plan.content_height)
    if image.size != content:
        image = image.resize(content, Image.Resampling.BICUBIC)
    page = Image.new("RGB", (plan.width, plan.height))
    page.paste(image)
    return page.tobytes()


def _clip(data: bytes, order: dict[str, Any]) -> tuple[dict[str, Any], Iterator[bytes]]:
    total, rate, sides = _survey(data)
    indices = sampled_frames(total, rate, order["rate"], order["max_frames"])
    plan = _canvas(sides, order, len(indices))
    decoded = _decoded(data, indices, sides)
    frames = {index: _laid_out(image, plan) for index, image in decoded}
    head = {"frames": len(indices), "height": plan.height, "width": plan.width, "seconds": [index / rate for index in indices[::2]]}
    return head, (frames[index] for index in indices)


def _survey(data: bytes) -> tuple[int, float, tuple[int, int]]:
    """Frames, frames a second, height and width, without decoding."""
    limits = LIMITS["clip"]
    with _opened(data) as box:
        stream = _track(box)
        _check_size("clip", stream.width, stream.height)
        total, most = 0, int(limits.seconds * limits.rate)
        for packet in box.demux(stream):
            total += packet.size > 0 and not packet.is_discard
            if total > most:
                raise Unusable(f"it has more than {most} frames; needed: fewer")
        rate = float(stream.average_rate or stream.guessed_rate or _DEFAULT_RATE)
        if not total or not 0.01 <= rate <= 1000:
            raise Unusable(f"it has {total} frames at {rate:g} a second; needed: one or more at a rate of 0.01 to 1000")
        if total / rate > limits.seconds:
            raise Unusable(f"it lasts {total / rate:.0f} s; needed: at most {limits.seconds} s")
        return total, rate, (stream.height, stream.width)


def _opened(data: bytes) -> Any:
    import av

    form = "matroska" if data[:4] == b"\x1aE\xdf\xa3" else "mp4"
    return av.open(io.BytesIO(data), format=form, metadata_errors="replace")


def _track(box: Any) -> Any:
    stream = next(iter(box.streams.video), None)
    if stream is None:
        raise Unusable("it has no pictures")
    if stream.codec_context.name not in _CODECS:
        raise Unusable("its codec is not served; needed: H.264, H.265, VP8, VP9 or AV1")
    # Threads are refused by the lock.
    stream.codec_context.thread_count = 1
    return stream


def _decoded(data: bytes, indices: list[int], sides: tuple[int, int]) -> Iterator[tuple[int, Image.Image]]:
    """The wanted frames in order. Raises Unusable if the clip ends early or changes its size."""
    wanted, found = sorted(set(indices)), 0
    with _opened(data) as box:
        for index, frame in enumerate(box.decode(_track(box))):
            if (frame.height, frame.width) != sides:
                raise Unusable("its size changes on the way; needed: one size")
            if index == wanted[found]:
                yield index, frame.to_image(threads=1)
                found += 1
                if found == len(wanted):
                    return
    raise Unusable(f"it ends before frame {wanted[found]} of those it announces; needed: a whole file")


def _read(count: int) -> bytes:
    data = sys.stdin.buffer.read(count)
    if len(data) < count:
        os._exit(1)
    return data


def _tell(head: dict[str, Any]) -> None:
    text = json.dumps(head).encode()
    _write(len(text).to_bytes(4, "big") + text)


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)
