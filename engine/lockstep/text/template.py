"""The checkpoint's `chat_template.jinja`: a conversation into prompt ids. Knows no HTTP; never renders a template a client sent.

Control tokens come from the template only. Every string of the conversation is rendered with a mark behind each character that
could open a control token, so that the spellings found afterwards are the template's own; the marks are then taken out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, Undefined
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from lockstep.core.types import Picture
from lockstep.text.errors import CheckpointTextError, TextError
from lockstep.text.history import Message, normalise
from lockstep.text.memo import PieceMemo, ThoughtMemo
from lockstep.text.placeholders import Place, Placeholders
from lockstep.text.thinking import Thinking
from lockstep.text.tokenizer import THINK_CLOSE, THINK_OPEN, Tokenizer

# A noncharacter of Unicode. Texts that hold it are escaped as well, so nothing is lost.
_MARK = "\ufdd0"
_BREAK, _LITERAL = _MARK + "1", _MARK + "0"
_MAPPING_NAMES = frozenset(dir(dict))
_INPUT_TURNS, _REPLY_TURN = ("<|user|>", "<|observation|>"), "<|assistant|>"


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids of a rendered conversation; `in_reasoning` if the reply begins inside the think block.

    `places` are those of its `pictures`, which whoever made the placeholders puts in.

    `marks` are lengths at which other prompts are likely to go on otherwise: before the first turn, before the newest, before the reply.
    """

    ids: tuple[int, ...]
    in_reasoning: bool
    marks: tuple[int, ...] = ()
    places: tuple[Place, ...] = ()
    pictures: tuple[Picture, ...] = ()


class ChatTemplate:
    """One template with its tokenizer. Safe to use from several threads."""

    def __init__(self, source: str, tokenizer: Tokenizer, where: str = "chat_template.jinja") -> None:
        """Raise CheckpointTextError if the template does not compile or cannot render one user message."""
        self._tokenizer, self._memo, self.thoughts = tokenizer, PieceMemo(tokenizer), ThoughtMemo()
        self.source = source
        try:
            self._template = _environment().from_string(source)
            self._effort_at, self._effort_lines = self._find_effort_line()
        except (TemplateError, TextError) as error:
            raise CheckpointTextError(
                f"{where}: cannot render one user message ({error}); needed: the template of this checkpoint"
            ) from None

    @classmethod
    def load(cls, directory: Path, tokenizer: Tokenizer) -> ChatTemplate:
        """Read `chat_template.jinja` of a checkpoint folder."""
        path = directory / "chat_template.jinja"
        try:
            return cls(path.read_text(encoding="utf-8"), tokenizer, str(path))
        except OSError as error:
            raise CheckpointTextError(f"{path}: not readable ({error.strerror}); download the file again") from None

    def prompt(
        self,
        messages: Sequence[Message],
        thinking: Thinking,
        clear_thinking: bool | None = None,
        add_generation_prompt: bool = True,
        limit: int | None = None,
        tools: Sequence[dict[str, Any]] = (),
        owner: str = "",
        placeholders: Placeholders | None = None,
    ) -> Prompt:
        """Ids of a conversation. Raises TextError if the template refuses it or the text is no Unicode, TooManyTokens far past `limit`.

        `messages` and `tools` are validated and of the OpenAI form. Thinking off is not a state the published template has: the effort
        line is dropped and the think block closed. Ids of pieces of text are remembered for `owner`, and `thoughts` that were put there.
        `placeholders` made the marks of pictures in the texts.
        """
        messages = normalise(messages, partial(self.thoughts.get, owner))
        if limit is not None:
            # Rendering holds the interpreter for as long as its texts are, counting does not.
            self._tokenizer.refuse_past(list(_certain_texts(messages)), limit)
        names: dict[str, Any] = {"add_generation_prompt": add_generation_prompt, "enable_thinking": thinking.enabled}
        if clear_thinking is not None:
            names["clear_thinking"] = clear_thinking
        if tools:
            names["tools"] = self._marked(list(tools))
        pieces = self._render(messages, thinking.effort, names, placeholders)
        opened = pieces[-2:] == [THINK_OPEN, ""]
        if not thinking.enabled:
            self._drop_effort_line(pieces, thinking.effort)
            if opened:
                pieces += [THINK_CLOSE, ""]
        ids, starts = self._ids(pieces, limit, owner)
        return Prompt(ids, opened and thinking.enabled, _marks(starts), placeholders.places(starts) if placeholders else ())

    def _render(
        self, messages: Sequence[Message], effort: str, names: dict[str, Any], placeholders: Placeholders | None = None
    ) -> list[str]:
        """Marked text cut at the template's own control tokens: plain pieces at even places, spellings at odd ones."""
        try:
            marked = [self._marked(message) for message in messages]
            rendered = self._template.render(messages=marked, reasoning_effort=effort, **names)
            return self._tokenizer.split(placeholders.expand(rendered) if placeholders else rendered)
        except RecursionError:
            raise TextError("the conversation is nested too deeply to render; needed: flat content and shallow call arguments") from None
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise TextError(f"the chat template cannot render this conversation: {str(error).replace(_BREAK, '')[:200]}") from None

    def _find_effort_line(self) -> tuple[int, dict[str, str]]:
        """Place among the pieces and text by level of the turn in which only the effort differs; place 0 if there is none."""
        levels = ("low", "high", "max")
        probes = [self._render([{"role": "user", "content": "x"}], level, {"add_generation_prompt": True}) for level in levels]
        places = [place for place, words in enumerate(zip(*probes, strict=False)) if len(set(words)) > 1]
        if len({len(probe) for probe in probes}) > 1 or len(places) != 1:
            return 0, {}
        return places[0], {level: probe[places[0]] for level, probe in zip(levels, probes, strict=True)}

    def _drop_effort_line(self, pieces: list[str], effort: str) -> None:
        """Take out the role token and its text, if the line stands as a turn of its own."""
        at = self._effort_at
        if at and len(pieces) > at and pieces[at] == self._effort_lines[effort]:
            del pieces[at - 1 : at + 1]

    def _mark_text(self, text: str) -> str:
        """`replace` per character: on megabytes `translate` holds the interpreter for seconds."""
        text = text.replace(_MARK, _LITERAL)
        for opener in self._tokenizer.openers:
            text = text.replace(opener, opener + _BREAK)
        return text

    def _marked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._mark_text(value)
        if isinstance(value, dict):
            return {self._marked(key): self._marked(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._marked(item) for item in value]
        return value

    def _ids(self, pieces: list[str], limit: int | None, owner: str) -> tuple[tuple[int, ...], list[tuple[str, int]]]:
        """Ids, and where each of the template's own tokens stands among them."""
        texts = [piece.replace(_BREAK, "").replace(_LITERAL, _MARK) if _MARK in piece else piece for piece in pieces[0::2]]
        plain = self._memo.encode_many(texts, limit, owner)
        ids, starts = list(plain[0]), list[tuple[str, int]]()
        for spelling, piece in zip(pieces[1::2], plain[1:], strict=True):
            starts.append((spelling, len(ids)))
            ids.append(self._tokenizer.added[spelling])
            ids += piece
        return tuple(ids), starts


def _certain_texts(messages: Sequence[Message]) -> Iterator[str]:
    """Texts no template leaves out: it may cut an assistant's."""
    for message in messages:
        content = message.get("content")
        if message.get("role") == "assistant" or not content:
            continue
        yield from [content] if isinstance(content, str) else (part.get("text", "") for part in content)


def _marks(starts: list[tuple[str, int]]) -> tuple[int, ...]:
    turns = [(spelling, place) for spelling, place in starts if spelling in (*_INPUT_TURNS, _REPLY_TURN)]
    newest = [place for spelling, place in turns if spelling in _INPUT_TURNS][-1:]
    reply = [place for spelling, place in turns if spelling == _REPLY_TURN][-1:]
    return tuple(sorted({place for _, place in turns[:1]}.union(newest, reply)))


class _Environment(ImmutableSandboxedEnvironment):
    """Looks names up where they are first: in a conversation's mappings, in a template's own namespaces and loops. Most of a template's
    work is that, and the sandbox would try and check each name anew. All other names, `_` before them too, are looked up by it.
    """

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in _MAPPING_NAMES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if kind in (Namespace, LoopContext) and attribute[0] != "_" and hasattr(obj, attribute):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


def _environment() -> ImmutableSandboxedEnvironment:
    """What published chat templates expect: block trimming, loop controls, `raise_exception`, JSON as clients wrote it."""
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    return json.dumps(None if isinstance(value, Undefined) else value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
