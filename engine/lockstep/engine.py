"""The engine process: loads a checkpoint, then runs the loop on the channel it inherited. Knows no HTTP."""

from __future__ import annotations

import hashlib
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from lockstep import __version__
from lockstep.cache import PAGE_TOKENS, StateSlots, TokenPool
from lockstep.channel.child import ChildChannel
from lockstep.config.model import ModelConfig
from lockstep.config.serving import ServingOptions
from lockstep.core.errors import LockstepError
from lockstep.core.messages import Failed, Loading, Ready
from lockstep.draft.loader import Surroundings, load_drafting
from lockstep.loop import EngineLoop
from lockstep.model.glm import MAX_STEP_ROWS, GlmModel
from lockstep.run.placement import place_rank
from lockstep.run.runner import Runner
from lockstep.sched import Scheduler, SchedulerLimits
from lockstep.weights import Checkpoint

EXIT_CANNOT_LOAD, EXIT_BROKE = 3, 5


class LoadError(LockstepError):
    """The engine cannot serve with these options on this machine."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A runner ready to go and the facts of its checkpoint."""

    runner: Runner
    max_drafts: int
    config: ModelConfig
    digest: str


def run_engine(options: ServingOptions, channel: ChildChannel) -> int:
    """Load, report Ready, serve until shutdown or until the front is gone. Returns the process's exit status."""
    # The front decides when the engine ends; a terminal's Ctrl-C or a service manager's stop reaches both processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    place_rank(0)
    try:
        with channel.ending_with_parent():
            loaded = load(options, lambda stage, fraction: channel.send(Loading(stage, fraction)))
    except Exception as error:  # tokenizers and safetensors raise types of their own
        return _fail(channel, f"engine cannot load {options.model}", error, EXIT_CANNOT_LOAD)
    limits = SchedulerLimits(
        context=options.context,
        slots=options.parallel,
        pool_pages=options.shared_tokens // PAGE_TOKENS,
        prompt_slice=options.prompt_slice,
        max_queued=options.max_queued,
        step_rows=MAX_STEP_ROWS,
        max_drafts=loaded.max_drafts,
    )
    loop = EngineLoop(channel, Scheduler(limits, time.monotonic), loaded.runner, options.state_hashes)
    channel.send(
        Ready(
            context=options.context,
            slots=options.parallel,
            pool_tokens=options.shared_tokens,
            vocab_size=loaded.config.text.vocab_size,
            device=options.device,
            engine_version=__version__,
            build_digest=loaded.digest,
        )
    )
    try:
        loop.run()
    except Exception as error:  # whatever broke a step, the front must be able to name it
        return _fail(channel, "engine broke while serving", error, EXIT_BROKE)
    return 0


def _fail(channel: ChildChannel, what: str, error: Exception, status: int) -> int:
    """Tell the front one line, the log the rest."""
    if not isinstance(error, LockstepError):
        traceback.print_exception(error)
    words = " ".join(str(error).split())
    channel.send(Failed(f"{what}: {words}" if isinstance(error, LockstepError) else f"{what}: {type(error).__name__}: {words}"))
    return status


def load(options: ServingOptions, progress: Callable[[str, float], None]) -> Loaded:
    """Checkpoint, model and memory as `options` asks. `progress(stage, fraction)` is told as it goes.

    Raises LoadError or the reader's own errors, each naming what was found and what was needed.
    """
    progress("checkpoint", 0.0)
    checkpoint = Checkpoint(options.model)
    text = checkpoint.config.text
    if options.context > text.max_position_embeddings:
        raise LoadError(f"--context {options.context}; this checkpoint was made for at most {text.max_position_embeddings} tokens")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise LoadError("--device cuda, but PyTorch finds no CUDA device; needed: a visible GPU, or --device cpu")
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    progress("weights", 0.1)
    model = GlmModel.load(checkpoint, checkpoint.config, options.device, dtype)
    progress("memory", 0.9)
    pool = TokenPool(text, options.shared_tokens // PAGE_TOKENS, options.device, dtype)
    slots = StateSlots(text, options.parallel, options.device, dtype)
    vocabulary = _used_vocabulary(options, text.vocab_size)
    drafting = load_drafting(options, Surroundings(checkpoint, model, vocabulary, pool.pages, options.parallel))
    return Loaded(Runner(model, pool, slots, vocabulary, drafting.drafter), drafting.max_drafts, checkpoint.config, _digest(options))


def _used_vocabulary(options: ServingOptions, rows: int) -> int:
    """Ids below it have a spelling; the head's rows above are padding."""
    highest = max(Tokenizer.from_file(str(options.model / "tokenizer.json")).get_vocab().values())
    if highest >= rows:
        raise LoadError(f"tokenizer.json has id {highest}, the head {rows} rows; needed: a tokenizer of this checkpoint")
    return highest + 1


def _digest(options: ServingOptions) -> str:
    """16 hex digits over what decides a reply's bits: builds of engine and PyTorch, device, the checkpoint's manifest and configuration."""
    told = hashlib.sha256(f"{__version__} {torch.__version__} {options.device}".encode())
    for name in ("manifest.json", "config.json"):
        path = options.model / name
        told.update(path.read_bytes() if path.exists() else b"-")
    return told.hexdigest()[:16]
