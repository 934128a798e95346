"""Length-prefixed frames of the dataclasses of `core.messages` and `core.rank_messages`. Knows bytes and messages, no sockets.

A frame is a 4-byte big-endian length and a MessagePack pair (name of the message, its fields). Behind that of a Submit pixels and
grammars come as they are, a frame each: copied they would hold up whoever sends them, and that is the event loop.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import msgspec

from lockstep.core.errors import LockstepError
from lockstep.core.messages import FromEngine, Submit, ToEngine
from lockstep.core.rank_messages import FromRank, ToRank

HEADER_BYTES = 4
# Several times the pixels that a picture may have (`media.limits`).
MAX_FRAME_BYTES = 640 << 20

Message = ToEngine | FromEngine | ToRank | FromRank

_TYPES: dict[str, type[Message]] = {
    kind.__name__: kind for messages in (ToEngine, FromEngine, ToRank, FromRank) for kind in get_args(messages)
}
_encoder = msgspec.msgpack.Encoder()
_envelope = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_decoders = {name: msgspec.msgpack.Decoder(kind) for name, kind in _TYPES.items()}


class FrameError(LockstepError):
    """Bytes that are no frame of this protocol."""


def written(message: Message) -> list[bytes]:
    """All that is sent for a message, in order. Raises FrameError."""
    if not isinstance(message, Submit):
        return [encode(message)]
    request, large = message.request, [picture.pixels for picture in message.request.pictures]
    request = replace(request, pictures=tuple(replace(picture, pixels=b"") for picture in request.pictures))
    if request.grammar is not None:
        large.append(request.grammar.data)
        request = replace(request, grammar=replace(request.grammar, data=b""))
    return [encode(Submit(request)), *(part for data in large for part in (_header(data), data))]


def read(next_body: Callable[[], bytes]) -> Message:
    """The message of the bodies that come next. Raises FrameError, and what `next_body` does."""
    message = decode(next_body())
    if not isinstance(message, Submit):
        return message
    request = message.request
    request = replace(request, pictures=tuple(replace(picture, pixels=next_body()) for picture in request.pictures))
    return Submit(replace(request, grammar=replace(request.grammar, data=next_body())) if request.grammar else request)


def encode(message: Message) -> bytes:
    """Header and body of one message."""
    body = _encoder.encode((type(message).__name__, message))
    return _header(body) + body


def _header(body: bytes) -> bytes:
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"frame of {len(body)} bytes; needed: at most {MAX_FRAME_BYTES}")
    return len(body).to_bytes(HEADER_BYTES, "big")


def body_length(header: bytes) -> int:
    """Length of the body behind a header. Raises FrameError past the bound, so that garbage cannot ask for memory."""
    length = int.from_bytes(header, "big")
    if length > MAX_FRAME_BYTES:
        raise FrameError(f"frame header announces {length} bytes; needed: at most {MAX_FRAME_BYTES}, from a side of this protocol")
    return length


def decode(body: bytes) -> Message:
    """The message of one body. Raises FrameError naming what was wrong."""
    try:
        name, fields = _envelope.decode(body)
        return _decoders[name].decode(fields)
    except KeyError as error:
        raise FrameError(f"frame names message {error}; known: {', '.join(_TYPES)}") from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise FrameError(f"frame of {len(body)} bytes does not decode: {error}") from None
