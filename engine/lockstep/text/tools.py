"""Tool calls out of a reply's ids, one call at a time. Knows tags by their ids, never by their spelling; knows no HTTP.

`<tool_call>` name, then pairs `<arg_key>` key `</arg_key>` `<arg_value>` value `</arg_value>`, then `</tool_call>`. A JSON object may
stand in place of the pairs, or of name and pairs. What turns out to be no call is text, to the byte.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from lockstep.text.errors import TextError
from lockstep.text.tokenizer import ByteText, Tokenizer
from lockstep.text.toolset import NAME, Toolset, strict_json

# Blanks are bounded, so that prose behind a mentioned tag is shown soon.
_HEAD = re.compile(r"\s{0,8}[A-Za-z0-9_-]{0,128}\s{0,8}")
_JSON_HEAD = re.compile(r"\s*([A-Za-z0-9_-]{0,128})\s*(\{.*)", re.DOTALL)


class Tag(Enum):
    """Tags of a call by their spelling."""

    CALL = "<tool_call>"
    CALL_END = "</tool_call>"
    KEY = "<arg_key>"
    KEY_END = "</arg_key>"
    VALUE = "<arg_value>"
    VALUE_END = "</arg_value>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A complete call. `arguments` is the JSON text of an object; `index` counts the calls of the reply."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """What a call says. `arguments` is the JSON text of an object, serialised once."""

    name: str
    arguments: str

    def numbered(self, index: int, key: str) -> ToolCall:
        """`key` names the request: the same request repeated gives the same ids, two calls never share one."""
        words = "\0".join((key, str(index), self.name, self.arguments))
        return ToolCall(index, "call_" + hashlib.sha256(words.encode()).hexdigest()[:24], self.name, self.arguments)


@dataclass(frozen=True, slots=True)
class Tools:
    """What a reader needs of a request: the tags' ids, the tools offered, and whether the reply may hold more than one call."""

    tags: dict[int, Tag]
    offered: Toolset
    parallel: bool = True
    key: str = ""

    @classmethod
    def of(cls, tokenizer: Tokenizer, offered: Toolset, parallel: bool, key: str) -> Tools:
        """Raise TextError if the checkpoint has no tags for calls."""
        missing = [tag.value for tag in Tag if tag.value not in tokenizer.added]
        if missing:
            raise TextError(f"this checkpoint has no token {missing[0]} and cannot call tools; leave `tools` out")
        return cls({tokenizer.added[tag.value]: tag for tag in Tag}, offered, parallel, key)


class Step(Enum):
    """What a token did to the call. Behind CALL and TEXT the reader is closed; `_BEFORE`: the token itself is not part of it."""

    HELD = auto()
    CALL = auto()
    CALL_BEFORE = auto()
    TEXT = auto()
    TEXT_BEFORE = auto()


class _State(Enum):
    HEAD = auto()
    JSON = auto()
    KEY = auto()
    AFTER_KEY = auto()
    VALUE = auto()
    AFTER_VALUE = auto()
    OPEN_END = auto()


class CallReader:
    """Reads one call from behind its opening tag. After a step that closes it, `call` or `held` says what was read."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self.is_open = False
        self.held = b""
        self.call: ParsedCall | None = None
        self._read = {
            _State.HEAD: self._head,
            _State.JSON: self._json,
            _State.KEY: self._key_text,
            _State.AFTER_KEY: self._after_key,
            _State.VALUE: self._value_text,
            _State.AFTER_VALUE: self._after_value,
            _State.OPEN_END: self._open_end,
        }

    def begin(self) -> None:
        """The opening tag was read."""
        self.is_open = True
        self._parts = [Tag.CALL.value.encode()]
        self.call = None
        self._name, self._key = "", ""
        self._pairs: dict[str, Any] = {}
        self._value: list[str] = []
        self._is_literal = False
        self._json_end = _JsonEnd()
        self._go(_State.HEAD)

    def feed(self, token: int, data: bytes) -> Step:
        """One id and its bytes."""
        step = self._read[self._state](self._tools.tags.get(token), data)
        if step in (Step.HELD, Step.CALL, Step.TEXT):
            self._parts.append(data)
        return self._closed(step)

    def finish(self) -> Step:
        """The reply ended by itself: CALL if what is open makes a whole call, else TEXT."""
        step = Step.TEXT
        match self._state:
            case _State.HEAD:
                name = self._text.strip()
                if name in self._tools.offered and not self._tools.offered.needs_arguments(name):
                    step = self._complete(name)
            case _State.JSON if self._json_end.is_whole:
                step = self._complete_json()
            case _State.AFTER_VALUE if not self._text.strip():
                step = self._complete_pairs()
            case _State.OPEN_END if not self._is_literal:
                step = self._complete_pairs()
        return self._closed(step)

    def abandon(self) -> None:
        """Close; `held` is everything read so far."""
        self._closed(Step.TEXT)

    def _closed(self, step: Step) -> Step:
        if step is not Step.HELD:
            self.is_open = False
            self.held = b"".join(self._parts)
        return step

    def _go(self, state: _State) -> Step:
        """Enter a state with no text of its own yet."""
        self._state, self._text, self._bytes = state, "", ByteText()
        return Step.HELD

    def _take(self, data: bytes) -> str:
        self._text += (new := self._bytes.feed(data))
        return new

    def _head(self, tag: Tag | None, data: bytes) -> Step:
        if tag is None:
            self._take(data)
            return self._head_text()
        name = self._text.strip()
        if tag is Tag.CALL_END and NAME.fullmatch(name):
            return self._complete(name)
        if tag is Tag.KEY and NAME.fullmatch(name):
            self._name = name
            return self._go(_State.KEY)
        if tag in (Tag.KEY_END, Tag.VALUE) and (reading := self._tools.offered.split_head(name)):
            self._name, self._key = reading
            return self._go(_State.AFTER_KEY if tag is Tag.KEY_END else _State.VALUE)
        return Step.TEXT_BEFORE

    def _head_text(self) -> Step:
        if _HEAD.fullmatch(self._text) or self._tools.offered.can_become_head(self._text.strip()):
            return Step.HELD
        found = _JSON_HEAD.fullmatch(self._text)
        if found is None:
            return Step.TEXT
        self._name = found[1]
        self._state, self._text = _State.JSON, found[2]
        return Step.HELD if self._json_end.feed(self._text) else Step.TEXT

    def _json(self, tag: Tag | None, data: bytes) -> Step:
        if tag is Tag.CALL_END and self._json_end.is_whole:
            return self._complete_json()
        if tag is not None and not self._json_end.in_string:
            return Step.TEXT_BEFORE
        return Step.HELD if self._json_end.feed(self._take(data)) else Step.TEXT

    def _key_text(self, tag: Tag | None, data: bytes) -> Step:
        if tag is None:
            self._take(data)
            return Step.HELD
        self._key = self._text.strip()
        if self._key and tag in (Tag.KEY_END, Tag.VALUE):
            return self._go(_State.AFTER_KEY if tag is Tag.KEY_END else _State.VALUE)
        return Step.TEXT_BEFORE

    def _after_key(self, tag: Tag | None, data: bytes) -> Step:
        if tag is Tag.VALUE:
            return self._go(_State.VALUE)
        return Step.HELD if tag is None and not data.strip() else Step.TEXT_BEFORE

    def _value_text(self, tag: Tag | None, data: bytes) -> Step:
        """Up to the closing tag everything is the value. A call's end in here is decided by what follows it."""
        if tag in (Tag.VALUE_END, Tag.CALL_END):
            self._value.append(self._text)
            return self._go(_State.AFTER_VALUE if tag is Tag.VALUE_END else _State.OPEN_END)
        self._take(data)
        return Step.HELD

    def _after_value(self, tag: Tag | None, data: bytes) -> Step:
        """The value ends here if a key or the end follows; otherwise the closing tag was part of the text."""
        if tag is None:
            self._take(data)
            return Step.HELD
        between = self._text.strip()
        if not between and tag is Tag.KEY:
            self._end_pair()
            return self._go(_State.KEY)
        if not between and tag in (Tag.CALL_END, Tag.CALL):
            return self._complete_pairs(before=tag is Tag.CALL)
        if tag in (Tag.KEY_END, Tag.VALUE) and self._is_key(between):
            self._end_pair()
            self._key = between
            return self._go(_State.AFTER_KEY if tag is Tag.KEY_END else _State.VALUE)
        return self._go_on_with_value(Tag.VALUE_END, tag, data)

    def _open_end(self, tag: Tag | None, data: bytes) -> Step:
        if tag is None and not data.strip():
            self._take(data)
            return Step.HELD
        if tag is Tag.CALL and not self._is_literal:
            return self._complete_pairs(before=True)
        return self._go_on_with_value(Tag.CALL_END, tag, data)

    def _go_on_with_value(self, quoted: Tag, tag: Tag | None, data: bytes) -> Step:
        """`quoted` and the text behind it belong to the value, if that may be a string at all."""
        if not self._tools.offered.may_be_text(self._name, self._key):
            return Step.TEXT_BEFORE
        self._value += [quoted.value, self._text]
        self._is_literal = True
        self._go(_State.VALUE)
        return self._value_text(tag, data)

    def _is_key(self, text: str) -> bool:
        """Without its opening tag a key counts only if the tool has it and it was not given yet."""
        return text in self._tools.offered.properties(self._name) and text not in self._pairs and text != self._key

    def _end_pair(self) -> None:
        self._pairs[self._key] = self._tools.offered.typed(self._name, self._key, "".join(self._value))
        self._value, self._is_literal = [], False

    def _complete_pairs(self, before: bool = False) -> Step:
        self._end_pair()
        step = self._complete(self._name)
        if not before:
            return step
        return Step.CALL_BEFORE if step is Step.CALL else Step.TEXT_BEFORE

    def _complete_json(self) -> Step:
        """An object behind a name holds the arguments; alone it holds the name too, which then has to be an offered one."""
        try:
            said = strict_json(self._text)
        except ValueError:
            return Step.TEXT
        name, arguments = self._name, said
        if not name:
            name, arguments = said.get("name"), said.get("arguments", said.get("parameters", {}))
            if not isinstance(name, str) or name not in self._tools.offered:
                return Step.TEXT
        if not isinstance(arguments, dict):
            return Step.TEXT
        self._pairs = arguments
        return self._complete(name)

    def _complete(self, name: str) -> Step:
        if not self._tools.parallel and name not in self._tools.offered:
            return Step.TEXT
        self.call = ParsedCall(name, json.dumps(self._pairs, ensure_ascii=False))
        return Step.CALL


class _JsonEnd:
    """Finds the end of a JSON object in text that comes in pieces. Checks brackets and strings only."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_escaped = False
        self.in_string = False
        self.is_whole = False

    def feed(self, text: str) -> bool:
        """False if anything but blanks follows the object."""
        for character in text:
            if self.is_whole:
                if not character.isspace():
                    return False
            elif self._is_escaped:
                self._is_escaped = False
            elif self.in_string:
                self._is_escaped = character == "\\"
                self.in_string = character != '"'
            elif character == '"':
                self.in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                self.is_whole = self._depth == 0
        return True
