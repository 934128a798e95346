"""What one running server consists of: options, engine, texts, keys, meters. Endpoints get it; it knows none of them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from starlette.requests import Request

from grammars.compiler import GrammarCompiler
from grammars.protocol import Vocabulary
from lockstep.channel.client import EngineState
from lockstep.config.fields import ConfigError
from lockstep.config.generation import GenerationConfig, read_generation_config
from lockstep.config.model import read_model_config
from lockstep.config.processor import read_processor_config
from lockstep.config.serving import ServingOptions
from lockstep.core.messages import Loading, Ready, Snapshot
from lockstep.core.types import EngineRequest, RoundEvent
from lockstep.media.decoder import MediaDecoder
from lockstep.media.limits import MIB, Rules
from lockstep.server.auth import Access, Keys
from lockstep.server.body import MAX_BODY_BYTES
from lockstep.server.errors import ApiError, engine_dead, unavailable
from lockstep.server.meters import Meters
from lockstep.server.namespace import Namespaces
from lockstep.server.reader import BodyReader
from lockstep.server.response_store import ResponseStore
from lockstep.text.errors import CheckpointTextError
from lockstep.text.placeholders import SPELLINGS
from lockstep.text.template import ChatTemplate
from lockstep.text.thinking import Thinking, default_thinking
from lockstep.text.tokenizer import Tokenizer

# An engine that reports nothing for this long while requests run counts as stuck. A prompt slice on a slow CPU stays far below.
STALL_S = 120.0
RECENT_ERRORS = 20
# The published limit for a request with media.
MEDIA_BODY_BYTES = 96 * MIB


class Engine(Protocol):
    """What the server needs of `channel.client.EngineClient`."""

    state: EngineState
    cause: str
    loading: Loading
    facts: Ready | None
    snapshot: Snapshot | None

    @property
    def last_step_age_s(self) -> float: ...
    def submit(self, request: EngineRequest) -> AsyncGenerator[RoundEvent, None]: ...
    def cancel(self, request_id: str) -> None: ...


@dataclass(slots=True)
class Deployment:
    """Built once at start. `created` is Unix seconds; `in_flight` counts requests between acceptance and their last byte, `looking` those
    whose pictures are being decoded."""

    options: ServingOptions
    engine: Engine
    tokenizer: Tokenizer
    template: ChatTemplate
    generation: GenerationConfig
    access: Access
    meters: Meters
    thinking: Thinking
    grammars: GrammarCompiler
    media: MediaDecoder | None = None
    namespaces: Namespaces = field(default_factory=Namespaces)
    reader: BodyReader = field(default_factory=BodyReader)
    replies: ResponseStore = field(default_factory=ResponseStore)
    created: int = field(default_factory=lambda: int(time.time()))
    started_s: float = field(default_factory=time.monotonic)
    draining: bool = False
    in_flight: int = 0
    looking: int = 0
    errors: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=RECENT_ERRORS))

    @classmethod
    def load(cls, options: ServingOptions, engine: Engine) -> Deployment:
        """Read the text files of the checkpoint and the keys. Raises LockstepError naming the file."""
        tokenizer = Tokenizer.load(options.model)
        try:
            generation, rules = read_generation_config(options.model), _media_rules(options, tokenizer)
        except ConfigError as error:
            raise CheckpointTextError(str(error)) from None
        meters = Meters(options.name)
        site = cls(
            options=options,
            engine=engine,
            tokenizer=tokenizer,
            template=ChatTemplate.load(options.model, tokenizer),
            generation=generation,
            access=Access(options.auth, Keys(options.api_key_file), options.trusted_proxy),
            meters=meters,
            thinking=default_thinking(options.thinking, options.reasoning_effort),
            grammars=GrammarCompiler(Vocabulary.of(tokenizer, generation.eos_token_ids)),
            media=MediaDecoder(rules) if rules else None,
            namespaces=Namespaces(options.spill_dir, options.api_key_file),
        )
        meters.follow(site)
        return site

    @property
    def body_bytes(self) -> int:
        """Bytes a conversation may have, media and all."""
        return MAX_BODY_BYTES if self.media is None else MEDIA_BODY_BYTES

    @property
    def context(self) -> int:
        """Tokens one request may hold: the engine's word once it is loaded."""
        return self.engine.facts.context if self.engine.facts else self.options.context

    @property
    def status(self) -> str:
        """ok, loading, draining, stalled or dead."""
        state = self.engine.state
        if state is EngineState.DEAD:
            return "dead"
        if self.draining or state is EngineState.DRAINING:
            return "draining"
        if state is EngineState.LOADING:
            return "loading"
        return "stalled" if self.engine.last_step_age_s > STALL_S else "ok"

    @property
    def report(self) -> Snapshot | None:
        """The engine's last, with requests that are looked at before they reach it; None before the first."""
        snapshot = self.engine.snapshot
        return replace(snapshot, running=snapshot.running + self.looking) if snapshot and self.looking else snapshot

    def note(self, path: str, error: ApiError) -> None:
        """Remember what was neither the client's fault nor its deadline. Such words hold nothing of a request: every key may read them."""
        if error.status >= 429 and error.status not in (431, 504):
            told = {"at": int(time.time()), "route": path[:80], "status": error.status, "message": error.message[:300]}
            self.errors.append(told)

    def owner(self, request: Request) -> str:
        """Label of the key of `request`, nothing without one: who shares turns with whom."""
        return self.access.label(request) or ""

    def namespace(self, request: Request, salt: str | None) -> str:
        """Name under which prompt states of `request` are kept."""
        return self.namespaces.of(self.access.label(request), salt)

    def require_ready(self) -> None:
        """Raise ApiError 503 unless requests can be taken."""
        if self.engine.state is EngineState.DEAD:
            raise engine_dead(self.engine.cause)
        if self.draining or self.engine.state is EngineState.DRAINING:
            raise unavailable("The server is shutting down; send the request again later or elsewhere.", "draining", retry=True)
        if self.engine.state is EngineState.LOADING:
            progress = self.engine.loading
            raise unavailable(f"Loading model ({progress.stage}, {progress.fraction:.0%}); try again in a while.", "loading", retry=True)

    def require_model(self, name: str | None) -> None:
        """Raise ApiError 404 for a model that is not served. An absent name is the served model."""
        if name is not None and name != self.options.name:
            shown = name if len(name) <= 80 else f"{name[:80]}..."
            message = f"The model `{shown}` is not served here; needed: `{self.options.name}`. GET /v1/models lists what is served."
            raise ApiError(404, message, param="model", code="model_not_found")


def _media_rules(options: ServingOptions, tokenizer: Tokenizer) -> Rules | None:
    """How this checkpoint wants pictures, None if it has no vision or must not use it. Raises ConfigError if its files do not fit."""
    config = read_model_config(options.model)
    if config.vision is None or config.media is None or not options.vision:
        return None
    ids = asdict(config.media)
    if any(tokenizer.added.get(spelling) != ids[name] for name, spelling in SPELLINGS.items()):
        raise ConfigError(f"{options.model}: config.json has other ids for {', '.join(SPELLINGS.values())} than tokenizer.json")
    told = read_processor_config(options.model, config.vision)
    return Rules(told.block, {"picture": told.picture, "clip": told.clip}, told.fps, told.max_frames)


def deployment(request: Request) -> Deployment:
    """The deployment of the app a request came to."""
    return request.app.state.deployment
