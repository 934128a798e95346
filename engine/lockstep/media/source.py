"""The file inside a data URL. Nothing is ever fetched: every other address gets one and the same answer. Knows no decoder."""

import base64
import binascii
import re

from lockstep.core.errors import LockstepError
from lockstep.media.limits import LIMITS

_HEAD = re.compile(r"data:[\w.+-]*/?[\w.+-]*(;[\w.+-]+=[\w.+\"-]*)*;base64,", re.IGNORECASE)
_HEAD_CHARACTERS, _SLICE_CHARACTERS = 200, 1 << 17
_SPACE = re.compile(r"\s+")
# What a file begins with; its declared type is not trusted.
_BEGINNINGS = {
    "picture": re.compile(rb"\xff\xd8\xff|\x89PNG\r\n\x1a\n|GIF8[79]a|RIFF....WEBP", re.DOTALL),
    "clip": re.compile(rb"....ftyp|\x1aE\xdf\xa3", re.DOTALL),
}
_FORMS = {"picture": "JPEG, PNG, WebP or GIF", "clip": "MP4, MOV, WebM or Matroska"}


class MediaError(LockstepError):
    """A picture or clip cannot be used. The text goes on from its name: "is no data URL; needed: ..."."""


def file_of(url: str, kind: str) -> bytearray:
    """The bytes of a data URL that holds a `kind`, picture or clip. White space and missing padding are forgiven.

    Raises MediaError for another address, for what is no base64, for a file that is too large or of another form."""
    head = _HEAD.match(url[:_HEAD_CHARACTERS])
    if head is None:
        raise MediaError("is no data URL in base64; needed: data:TYPE;base64,... This server fetches nothing: send the file itself")
    limit = LIMITS[kind].file_bytes
    if len(url) - head.end() > limit * 3 // 2:
        raise MediaError(f"has more than {limit} bytes; needed: a smaller file")
    try:
        data = _decoded(url, head.end())
    except (binascii.Error, ValueError):
        raise MediaError("is no base64; needed: the standard alphabet, unbroken") from None
    if len(data) > limit:
        raise MediaError(f"has {len(data)} bytes; needed: at most {limit}")
    if not _BEGINNINGS[kind].match(data):
        raise MediaError(f"is a file of another form; needed: {_FORMS[kind]}")
    return data


def _decoded(text: str, start: int) -> bytearray:
    """Base64 from `start` on, in slices: what is done in one go holds the interpreter, and health with it. Raises ValueError."""
    end, found, rest = len(text), bytearray(), ""
    while end > start and text[end - 1] in "= \t\r\n":
        end -= 1
    for at in range(start, end, _SLICE_CHARACTERS):
        rest += _SPACE.sub("", text[at : min(at + _SLICE_CHARACTERS, end)])
        if "=" in rest:
            raise ValueError("padding inside")
        whole = len(rest) - len(rest) % 4
        found += base64.b64decode(rest[:whole], validate=True)
        rest = rest[whole:]
    found += base64.b64decode(rest + "=" * (-len(rest) % 4), validate=True)
    return found
