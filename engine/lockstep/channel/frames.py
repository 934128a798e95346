"""Length-prefixed frames of the dataclasses of `core.messages` and `core.rank_messages`. Knows bytes and messages, no sockets.

A frame is a 4-byte big-endian length and a MessagePack pair (name of the message, its fields).
"""

from typing import get_args

import msgspec

from lockstep.core.errors import LockstepError
from lockstep.core.messages import FromEngine, ToEngine
from lockstep.core.rank_messages import FromRank, ToRank

HEADER_BYTES = 4
# Twice the pixels that the media of one request may have (`media.limits`).
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


def encode(message: Message) -> bytes:
    """Header and body of one message."""
    body = _encoder.encode((type(message).__name__, message))
    if len(body) > MAX_FRAME_BYTES:
        raise FrameError(f"frame of {len(body)} bytes; needed: at most {MAX_FRAME_BYTES}")
    return len(body).to_bytes(HEADER_BYTES, "big") + body


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
