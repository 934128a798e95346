"""Files come out of sandboxed workers as the pixels the processor's rules give, or are refused with a reason, in time."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psutil
import pytest
import uvloop
from PIL import Image

from fixtures.hostile_media import honest_clip, honest_picture, hostile_files
from fixtures.processes import children
from fixtures.waiting import until
from lockstep.media.decoder import Decoded, MediaDecoder
from lockstep.media.limits import Rules
from lockstep.media.source import MediaError, file_of

RULES = Rules(block=28, tokens={"picture": (16, 8000), "clip": (16, 240000)}, rate=2.0, frames=2048)
LATE_S = 1.0


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def workers() -> set[int]:
    """The numbers of this process's decoders; whatever else it started, such as a daemon that other tests use, is not among them."""
    return children(os.getpid(), "pixels", below=True)


def with_decoder(scenario: Callable[[MediaDecoder], Awaitable[object]]) -> object:
    async def run() -> object:
        decoder = MediaDecoder(RULES)
        await decoder.start()
        try:
            return await scenario(decoder)
        finally:
            await decoder.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def decoded(data: bytes, kind: str = "picture", low: bool = False) -> Decoded:
    found = with_decoder(lambda decoder: decoder.decode(url(data), kind, "", low))
    assert isinstance(found, Decoded)
    return found


async def said_of(decoder: MediaDecoder, data: bytes, kind: str) -> str:
    """Why a file was refused, nothing if it was taken."""
    try:
        await decoder.decode(url(data), kind, "")
    except MediaError as error:
        return str(error)
    return ""


def pixels(found: Decoded, segment: int = 0) -> Image.Image:
    return Image.frombytes("RGB", (found.width, found.height), found.segments[segment].pixels[: found.width * found.height * 3])


def saved(image: Image.Image, form: str = "PNG", **how: object) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **how)
    return out.getvalue()


def test_a_picture_that_fits_lies_at_the_top_left_of_a_black_canvas_untouched() -> None:
    data = honest_picture(size=(150, 200))
    found = decoded(data)
    page = pixels(found)
    assert (found.width, found.height, found.tokens) == (168, 224, 48)
    assert page.crop((0, 0, 150, 200)).tobytes() == Image.open(io.BytesIO(data)).tobytes()
    assert not page.crop((150, 0, 168, 224)).getbbox()
    assert not page.crop((0, 200, 168, 224)).getbbox()


def test_the_cameras_turn_is_undone_and_what_is_clear_lies_on_white() -> None:
    turn = Image.Exif()
    turn[0x0112] = 6
    side = Image.new("RGB", (140, 280), "red")
    side.paste("blue", (0, 0, 140, 140))
    found = decoded(saved(side, exif=turn))
    assert (found.width, found.height) == (280, 140)
    assert pixels(found).getpixel((10, 10)) == (255, 0, 0)
    assert pixels(found).getpixel((270, 10)) == (0, 0, 255)
    assert pixels(decoded(saved(Image.new("RGBA", (140, 140), (9, 9, 9, 0))))).getpixel((5, 5)) == (255, 255, 255)
    assert pixels(decoded(saved(Image.new("I;16", (140, 140), 0x8000)))).getpixel((5, 5)) == (128, 128, 128)


def test_low_detail_takes_fewer_tokens() -> None:
    data = honest_picture(size=(800, 600))
    assert decoded(data, low=True).tokens <= 361 < decoded(data).tokens


@pytest.mark.parametrize(("codec", "form"), [("libx264", "mp4"), ("libvpx-vp9", "webm"), ("libx265", "mp4"), ("libsvtav1", "mp4")])
def test_clips_are_looked_at_twice_a_second(codec: str, form: str) -> None:
    before = os.sched_getscheduler(0)
    found = decoded(honest_clip(codec, form, frames=25, rate=10), "clip")
    assert [segment.frames for segment in found.segments] == [2, 2, 2]
    assert [round(second, 1) for second in found.seconds] == [0.0, 0.7, 1.5]
    assert found.tokens * 28 * 28 == found.width * found.height
    assert found.segments[0].digest != found.segments[1].digest
    assert os.sched_getscheduler(0) == before, "making the clip must not change how this process is scheduled"


def test_equal_pixels_have_one_digest_whatever_the_file() -> None:
    image = Image.new("RGB", (140, 140), (200, 30, 30))
    one, two = decoded(saved(image)), decoded(saved(image, "WEBP", lossless=True))
    assert one.segments[0].digest == two.segments[0].digest
    assert decoded(saved(Image.new("RGB", (140, 168), (200, 30, 30)))).segments[0].digest != one.segments[0].digest


def test_a_worker_that_was_killed_while_it_waited_costs_no_picture() -> None:
    async def scenario(decoder: MediaDecoder) -> None:
        await decoder.decode(url(honest_picture(size=(56, 56))), "picture", "")
        await until(lambda: bool(workers()))
        for worker in workers():
            os.kill(worker, signal.SIGKILL)
        await until(lambda: not workers())
        assert (await decoder.decode(url(honest_picture(size=(112, 112))), "picture", "")).tokens == 16

    with_decoder(scenario)


def test_whoever_leaves_while_a_worker_starts_leaves_none_behind() -> None:
    async def scenario(decoder: MediaDecoder) -> None:
        for _ in range(5):
            seen = set(psutil.Process().children())
            asked = asyncio.create_task(decoder.decode(url(honest_clip(), "video/mp4"), "clip", ""))
            await until(lambda seen=seen: bool(set(psutil.Process().children()) - seen), 0)
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        await decoder.close()
        assert not workers()

    with_decoder(scenario)


def test_hostile_files_end_with_a_reason_within_a_second_and_leave_nothing_behind() -> None:
    files, me, slow = hostile_files(), psutil.Process(), {}
    assert len(files) >= 40

    async def refuse(decoder: MediaDecoder, name: str) -> float:
        kind, data = files[name]
        began = time.monotonic()
        said = await said_of(decoder, data, kind)
        assert 10 < len(said) < 200, name
        return time.monotonic() - began

    async def scenario(decoder: MediaDecoder) -> None:
        for name in files:
            if (took := await refuse(decoder, name)) > LATE_S:
                slow[name] = took
        again = {name: await refuse(decoder, name) for name in slow}
        assert not {name: took for name, took in again.items() if took > LATE_S}
        before = me.memory_info().rss
        for name in files:
            await refuse(decoder, name)
        assert me.memory_info().rss - before < 16 << 20
        assert (await decoder.decode(url(honest_picture(size=(112, 112))), "picture", "")).tokens == 16

    with_decoder(scenario)
    assert not workers()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "GIF"])
def test_mutated_pictures_decode_or_are_refused(form: str) -> None:
    import random

    rng, whole = random.Random(form), honest_picture(form)

    async def scenario(decoder: MediaDecoder) -> None:
        for _ in range(10):
            data = bytearray(whole)
            for _ in range(rng.randrange(1, 8)):
                data[rng.randrange(12, len(data))] = rng.randrange(256)
            said = await said_of(decoder, bytes(data), "picture")
            assert not said or "decode" in said

    with_decoder(scenario)


@pytest.mark.parametrize(
    "address",
    ["http://127.0.0.1:9/a.png", "https://example.com/a.png", "file:///etc/passwd", "ftp://127.0.0.1/a", "//127.0.0.1/a", "/etc/passwd", "",
     "data:image/png,abc", "DATA:text/html;charset=utf-8,<p>", "javascript:1", "data:", "gopher://127.0.0.1:70/"],
)  # fmt: skip
def test_other_addresses_get_one_answer(address: str) -> None:
    with pytest.raises(MediaError, match=r"no data URL.*fetches nothing"):
        file_of(address, "picture")


def test_base64_is_read_with_white_space_and_without_padding_but_not_with_garbage() -> None:
    data = honest_picture(size=(31, 29))
    text = base64.b64encode(data).decode()
    wrapped = "\r\n".join(text[at : at + 76] for at in range(0, len(text), 76)).rstrip("=")
    assert file_of(f"data:image/png;base64,{wrapped}", "picture") == data
    assert file_of(f"DATA:;BASE64,{text}", "picture") == data
    with pytest.raises(MediaError, match="no base64"):
        file_of(f"data:image/png;base64,{text[:40]}!{text[40:]}", "picture")
    with pytest.raises(MediaError, match="bytes; needed: a"):
        file_of("data:image/png;base64," + "A" * (16 << 20), "picture")


LOCKED = """
import os, socket, sys
from pixels.sandbox import enter
level = enter(1 << 30, 5)
held = []
for name, act in {
    "open": lambda: open("/etc/passwd"), "connect": lambda: socket.socket().connect(("127.0.0.1", 9)), "fork": os.fork,
    "write": lambda: open(sys.argv[1], "w"), "list": lambda: os.listdir("/"), "run": lambda: os.execv("/bin/true", ["true"]),
    "kill": lambda: os.kill(os.getppid(), 0),
}.items():
    try:
        act()
    except (PermissionError, BlockingIOError):
        held.append(name)
try:
    bytearray(2 << 30)
except MemoryError:
    held.append("memory")
print(level, "|", *held)
"""


def test_the_lock_leaves_no_files_no_network_no_processes_and_no_memory(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "engine")}
    told = subprocess.run(
        [sys.executable, "-c", LOCKED, str(tmp_path / "escape")], env=environment, capture_output=True, text=True, timeout=30
    )
    assert told.returncode == 0, told.stderr
    level, _, held = told.stdout.strip().partition(" | ")
    if "seccomp" not in level:
        pytest.skip(f"this kernel gives {level} only")
    assert held.split() == ["open", "connect", "fork", "write", "list", "run", "kill", "memory"]
