"""Pictures and clips of one conversation: out of its parts, through the decoder, into prompt and engine. Knows no tensor and no format."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from lockstep.core.errors import CONTEXT_EXCEEDED
from lockstep.core.types import Picture
from lockstep.media.decoder import Decoded, DecoderBusy, MediaDecoder, WorkerFault
from lockstep.media.limits import LIMITS
from lockstep.media.source import MediaError
from lockstep.server.body import aside
from lockstep.server.deployment import deployment
from lockstep.server.errors import bad_request, overloaded, unavailable
from lockstep.server.turns import ChatMessage, MediaPart
from lockstep.text.placeholders import Placeholders, Shown
from lockstep.text.template import Prompt

_KINDS = {"image_url": "picture", "video_url": "clip"}


@dataclass(frozen=True, slots=True)
class Album:
    """What the messages of one request show. `messages` are plain, with marks where it stands."""

    messages: list[dict[str, Any]]
    decoded: Sequence[Decoded] = ()
    placeholders: Placeholders | None = None

    def pictures(self, prompt: Prompt) -> tuple[Picture, ...]:
        """Pixels for the engine, where `prompt` has their placeholders."""
        found = []
        for place in prompt.places:
            one = self.decoded[place.index]
            segment = one.segments[place.segment]
            found.append(Picture(place.start, one.tokens, segment.frames, one.height, one.width, segment.digest, segment.pixels))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class _Found:
    """A part and where it stands."""

    row: int
    column: int
    role: str
    part: MediaPart

    @property
    def kind(self) -> str:
        return _KINDS[self.part.type]

    @property
    def where(self) -> str:
        return self.part.place or f"messages[{self.row}].content[{self.column}]"


async def read_album(request: Request, messages: Sequence[ChatMessage], owner: str) -> Album:
    """Decode every picture and clip. Raises ApiError 400 naming the first that cannot be used, 429 if too many wait.

    Without vision one in a message of the user is refused; one in a tool's result becomes a note, so that an agent can go on."""
    site = deployment(request)
    plain, found = await aside(request, lambda: _looked_through(messages))
    if not found:
        return Album(plain)
    if site.media is None:
        texts = [_note(one) for one in found]
        decoded, placeholders = [], None
    else:
        _check_amounts(found)
        site.looking += 1
        try:
            decoded = await _decode(site.media, found, owner, site.context)
        finally:
            site.looking -= 1
        placeholders = Placeholders([Shown(one.tokens, one.seconds) for one in decoded])
        texts = [placeholders.mark(index) for index in range(len(decoded))]
    for one, text in zip(found, texts, strict=True):
        plain[one.row]["content"][one.column] = {"type": "text", "text": text}
    return Album(plain, decoded, placeholders)


def _looked_through(messages: Sequence[ChatMessage]) -> tuple[list[dict[str, Any]], list[_Found]]:
    """Messages as plain objects, and the pictures and clips in them."""
    found = [
        _Found(row, column, message.role, part)
        for row, message in enumerate(messages)
        for column, part in enumerate(message.content if isinstance(message.content, list) else ())
        if isinstance(part, MediaPart)
    ]
    return [message.model_dump(exclude_none=True) for message in messages], found


def _note(one: _Found) -> str:
    if one.role != "tool":
        raise bad_request(f"`{one.where}` is a {one.kind}, and this server is text-only (--no-vision); send text.", one.where, "no_vision")
    return f"[a {one.kind} that this server cannot show: it was started without vision]"


def _check_amounts(found: list[_Found]) -> None:
    for kind, limits in LIMITS.items():
        sizes = [len(one.part.address) * 3 // 4 for one in found if one.kind == kind]
        if len(sizes) > limits.count:
            message = f"The request has {len(sizes)} {kind}s; needed: at most {limits.count}. Leave older ones out."
            raise bad_request(message, "messages", "too_much_media")
        if sum(sizes) > limits.all_bytes:
            message = f"The {kind}s of the request have {sum(sizes)} bytes; needed: at most {limits.all_bytes} together. Send smaller ones."
            raise bad_request(message, "messages", "too_much_media")


async def _decode(media: MediaDecoder, found: list[_Found], owner: str, context: int) -> list[Decoded]:
    decoded, tokens = list[Decoded](), Counter[str]()
    for one in found:
        try:
            decoded.append(await media.decode(one.part.address, one.kind, owner, one.part.detail == "low"))
        except MediaError as error:
            raise bad_request(f"The {one.kind} in `{one.where}` {error}.", f"{one.where}.{one.part.type}", "invalid_media") from None
        except DecoderBusy as error:
            raise overloaded(f"{error}.", 0) from None
        except WorkerFault as error:
            raise unavailable(f"The server cannot look at pictures now: {error}.", "media_unavailable", retry=True) from None
        tokens[one.kind] += decoded[-1].tokens * len(decoded[-1].segments)
        if tokens.total() > context:
            message = f"This model's maximum context length is {context} tokens. However, the media need {tokens.total()} tokens or more"
            raise bad_request(f"{message}. Send fewer or smaller ones.", "messages", CONTEXT_EXCEEDED)
        if tokens[one.kind] > (most := LIMITS[one.kind].all_tokens):
            message = f"The {one.kind}s of the request take {tokens[one.kind]} tokens or more; needed: at most {most} together."
            raise bad_request(f"{message} Send fewer or smaller ones, or ask for low detail.", "messages", "too_much_media")
    return decoded
