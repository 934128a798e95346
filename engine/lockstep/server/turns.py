"""Turns of a conversation as chat takes them: who speaks, and parts of text, pictures and clips. Knows shapes, no endpoint."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

# An error repeats it.
_PLACE_CHARACTERS = 200


def fault(words: str) -> PydanticCustomError:
    """A value is of another form than `words` say."""
    return PydanticCustomError("needed", "{words}", {"words": words})


class TextPart(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    type: Literal["text"]
    text: str


class MediaSource(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    url: str
    detail: Literal["auto", "low", "high", "original"] | None = None


class MediaPart(BaseModel):
    """A picture or clip as a data URL. `detail` low makes a picture small, of about 512 x 512 pixels."""

    model_config = ConfigDict(strict=True, extra="ignore")
    type: Literal["image_url", "video_url"]
    image_url: str | MediaSource | None = None
    place: str | None = Field(None, description="How to name the part in an error, if it came in other words.")
    video_url: str | MediaSource | None = None

    @property
    def _source(self) -> str | MediaSource:
        return (self.image_url if self.type == "image_url" else self.video_url) or ""

    @property
    def address(self) -> str:
        return self._source if isinstance(self._source, str) else self._source.url

    @property
    def detail(self) -> str | None:
        return None if isinstance(self._source, str) else self._source.detail


def _content(value: Any) -> Any:
    if isinstance(value, list):
        value = [{"type": "text", "text": part.get("refusal")} if _is_refusal(part) else part for part in value]
        for place, part in enumerate(value):
            _check_part(part, place)
    elif value is not None and not isinstance(value, str):
        raise fault("a string, a list of text parts or null")
    return value


def _is_refusal(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "refusal"


def _check_part(part: Any, place: int) -> None:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind in ("image_url", "video_url"):
        source = part.get(kind)
        source = {"url": source} if isinstance(source, str) else source
        if not isinstance(source, dict) or not isinstance(source.get("url"), str):
            raise fault(f'parts of the form {{"type": "{kind}", "{kind}": {{"url": "data:..."}}}}; part {place} is not')
        if source.get("detail") not in (None, "auto", "low", "high", "original"):
            raise fault(f"`detail` one of auto, low, high and original; part {place} has another")
        if not isinstance(name := part.get("place") or "", str) or len(name) > _PLACE_CHARACTERS:
            raise fault(f"`place` a string of at most {_PLACE_CHARACTERS} characters; part {place} has another")
    elif isinstance(kind, str) and kind != "text" and len(kind) <= 40:
        raise fault(f"parts of type text, image_url and video_url; part {place} has the type {kind}")
    elif kind != "text" or not isinstance(part.get("text"), str):
        raise fault(f'parts of the form {{"type": "text", "text": "..."}}; part {place} is not')


class ChatMessage(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | list[TextPart | MediaPart] | None, BeforeValidator(_content)] = None
    reasoning_content: str | None = Field(None, description="Earlier reasoning of an assistant turn.")
    reasoning: str | None = None
    tool_calls: list[Any] | None = Field(None, description="Earlier calls. One that no tool could have got is left out with its result.")
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _who_may_be_silent(self) -> "ChatMessage":
        if self.content is None and self.role not in ("assistant", "tool"):
            raise fault(f"`content` in a message of role {self.role}: a string or a list of text parts")
        if self.role not in ("user", "tool") and isinstance(self.content, list) and not all(isinstance(p, TextPart) for p in self.content):
            raise fault(f"pictures and clips in messages of role user and tool only, not {self.role}")
        return self


Messages = Annotated[list[ChatMessage], Field(min_length=1, max_length=1 << 14)]
