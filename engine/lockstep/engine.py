"""The engine process: loads a checkpoint, starts the other ranks if there are any, then runs the loop on the channel it inherited.

Another rank is the same command with `--rank`: it loads its share and runs what rank 0 tells it. Knows no HTTP.
"""

import functools
import hashlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import NoReturn

import torch
from tokenizers import Tokenizer

from grammars.protocol import Backend, Vocabulary
from lockstep import __version__
from lockstep.cache import PAGE_TOKENS, StateSlots, TokenPool
from lockstep.cache.spill import SpillFolder
from lockstep.channel.child import ChildChannel
from lockstep.config.generation import read_generation_config
from lockstep.config.model import ModelConfig
from lockstep.config.processor import read_processor_config
from lockstep.config.serving import ServingOptions
from lockstep.config.share import Share
from lockstep.core.errors import LockstepError
from lockstep.core.grid import pages_of
from lockstep.core.messages import Failed, Loading, Ready
from lockstep.core.rank_messages import Begin, HashState, Joined, Leave, Run
from lockstep.draft.loader import Surroundings, load_drafting
from lockstep.layers.exchange import ALONE, Exchange, least
from lockstep.layers.params import Params
from lockstep.loop import EngineLoop
from lockstep.model.glm import MAX_STEP_ROWS, GlmModel
from lockstep.model.vision import VisionTower
from lockstep.run.capacity import GIB, free_bytes, needs, pool_pages
from lockstep.run.exchange import meet, meeting, part_ways
from lockstep.run.kept import KeptSizes
from lockstep.run.measure import measure_steps
from lockstep.run.origin import origin
from lockstep.run.placement import place_rank
from lockstep.run.ranks import Ranks, orders
from lockstep.run.runner import Runner
from lockstep.run.settings import compare_settings, rank_settings, settings_digest
from lockstep.run.tables import use_table
from lockstep.run.team import Follower, LeadingRunner
from lockstep.run.watchdog import Watchdog, WatchedRunner
from lockstep.sched import KeptLimits, Scheduler, SchedulerLimits
from lockstep.text.tokenizer import Tokenizer as SpelledTokenizer
from lockstep.weights import Checkpoint
from lockstep.weights.dense import coded_weights

EXIT_CANNOT_LOAD, EXIT_BROKE, EXIT_RANK, EXIT_STALLED = 3, 5, 6, 7
# The engine's own watchdog has the better words; a broken exchange is the last resort.
EXCHANGE_SLACK_S = 30.0
LAST_WORDS_S = 2.0
# An engine that ends has so long to send kept states to disk, then to finish writing; the front waits longer (`channel.client`).
PUT_AWAY_S, SETTLE_S = 8.0, 3.0
# The name torch's own launcher gives it; libraries look for it.
RANKS_ON_HOST = "LOCAL_WORLD_SIZE"


class LoadError(LockstepError):
    """The engine cannot serve with these options on this machine."""


log = logging.getLogger("lockstep.engine")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A runner ready to go and the facts of its checkpoint."""

    runner: Runner
    max_drafts: int
    config: ModelConfig
    digest: str
    pool_pages: int
    kept: KeptLimits = field(default_factory=KeptLimits)
    spill: SpillFolder | None = None


class LastWords:
    """Tells the front why the engine ends, and ends it. Loop, watchdog and the watcher of a rank may all try; the first one counts."""

    def __init__(self, channel: ChildChannel) -> None:
        self._channel, self._lock, self._told = channel, threading.Lock(), False
        self.ranks: Ranks | None = None
        self.spill: SpillFolder | None = None

    def end(self, cause: str, status: int) -> NoReturn:
        """Tell `cause` and exit at once, whatever the loop is doing."""
        # A front that does not read must not keep a broken engine alive.
        threading.Timer(LAST_WORDS_S, os._exit, (status,)).start()
        self._tell(cause)
        os._exit(status)

    def fail(self, what: str, error: Exception, status: int) -> int:
        """Tell `error`, or that another rank went if that is the true cause. Returns the exit status."""
        if not isinstance(error, LockstepError):
            traceback.print_exception(error)
        cause = self.ranks.cause_of_death(LAST_WORDS_S) if self.ranks else ""
        self._tell(cause or f"{what}: {_one_line(error)}", error.code if isinstance(error, LockstepError) and not cause else "")
        return EXIT_RANK if cause else status

    def _tell(self, cause: str, code: str = "") -> None:
        with self._lock:
            if self.ranks:
                self.ranks.kill()
            if not self._told:
                self._channel.send(Failed(cause, code))
            self._told = True
            # exact: what an engine kept before it found itself broken is served to nobody.
            if self.spill:
                self.spill.discard()


def run_engine(options: ServingOptions, channel: ChildChannel) -> int:
    """Load, report Ready, serve until shutdown or until the front is gone. Returns the process's exit status."""
    _settle(0, options.ranks)
    words = LastWords(channel)
    try:
        with channel.ending_with_parent():
            if options.device == "cuda":
                _require_devices(options.ranks)
            settings = rank_settings(options, _digest(options), __version__)
            exchange = _gather_ranks(options, settings, words)
            loaded = load(options, lambda stage, fraction: channel.send(Loading(stage, fraction)), exchange)
            if words.ranks:
                words.ranks.wait_joined()
    except Exception as error:  # tokenizers and safetensors raise types of their own
        return words.fail(f"engine cannot load {options.model}", error, EXIT_CANNOT_LOAD)
    runner = LeadingRunner(loaded.runner, words.ranks, settings_digest(settings)) if words.ranks else loaded.runner
    watchdog = Watchdog(options.step_timeout, lambda cause: words.end(cause, EXIT_STALLED))
    scheduler = Scheduler(_limits(options, loaded), time.monotonic, loaded.kept)
    if loaded.spill:
        words.spill = loaded.spill
        scheduler.kept.adopt(loaded.spill.take_over(options.ranks))
    ran = runner.ran if isinstance(runner, LeadingRunner) else tuple
    # Threads have their own number of compute threads and their own device.
    worker = ThreadPoolExecutor(1, "step", place_rank, (0,)) if options.loop == "overlapped" else None
    loop = EngineLoop(
        channel, scheduler, WatchedRunner(runner, watchdog), options.state_hashes, ran=ran, worker=worker, put_away_s=PUT_AWAY_S
    )
    told = (settings_digest(settings), *words.ranks.settings()) if words.ranks else ()
    channel.send(replace(_ready(options, loaded), rank_settings=told))
    try:
        loop.run()
    except Exception as error:  # whatever broke a step, the front must be able to name it
        return words.fail("engine broke while serving", error, EXIT_BROKE)
    finally:
        watchdog.close()
        if worker:
            worker.shutdown(wait=False)
        if loaded.spill:
            loaded.spill.close(SETTLE_S)
    if words.ranks:
        words.ranks.leave(part_ways)
    return 0


def run_rank(options: ServingOptions, rank: int, channel: ChildChannel) -> int:
    """Be rank `rank`: load its share, run what rank 0 says. Returns the process's exit status; ends at once when rank 0 is gone."""
    _settle(rank, options.ranks)
    with channel.ending_with_parent():
        try:
            _follow(options, Share(rank, options.ranks), channel)
        except Exception as error:  # whatever it is, rank 0 tells the front
            if not isinstance(error, LockstepError):
                traceback.print_exception(error)
            channel.send(Failed(_one_line(error)))
            return EXIT_RANK
    return 0


def _settle(rank: int, ranks: int) -> None:
    # The front decides when the engine ends; a terminal's Ctrl-C or a service manager's stop reaches all processes.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.environ[RANKS_ON_HOST] = str(ranks)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=f"%(asctime)s %(levelname)s rank {rank} %(name)s: %(message)s")
    log.info("begins: rank %d of %d, process %d", rank, ranks, os.getpid())
    place_rank(rank)


def _require_devices(ranks: int) -> None:
    """Raises LoadError where a rank would have no device, or one of another kind: said before ranks meet, whose library only fails then."""
    if not torch.cuda.is_available():
        raise LoadError("--device cuda, but PyTorch finds no CUDA device; needed: a visible GPU, or --device cpu")
    if torch.cuda.device_count() < ranks:
        raise LoadError(f"--ranks {ranks}, but PyTorch finds {torch.cuda.device_count()} CUDA devices; needed: one a rank")
    # exact: what every rank computes for itself has the same bits on all; libraries choose by these.
    cards = [torch.cuda.get_device_properties(at) for at in range(ranks)]
    if len({(card.major, card.minor, card.multi_processor_count) for card in cards}) > 1:
        raise LoadError(f"--ranks {ranks} on {' and '.join(card.name for card in cards)}; needed: cards of one kind")


def _gather_ranks(options: ServingOptions, settings: dict[str, str], words: LastWords) -> Exchange:
    """Start the other ranks and meet them. From here on the end of one of them is the end of all."""
    if options.ranks == 1:
        return ALONE
    address = meeting()
    command = [sys.executable, "-m", "lockstep", "engine", *options.to_argv()]
    words.ranks = Ranks(command, options.ranks, Begin(address, settings), lambda cause: words.end(cause, EXIT_RANK), options.log_dir)
    return meet(Share(0, options.ranks), address, options.device, options.step_timeout + EXCHANGE_SLACK_S)


def _follow(options: ServingOptions, share: Share, channel: ChildChannel) -> None:
    messages = orders(channel)
    begin = next(messages)
    assert isinstance(begin, Begin)
    settings = rank_settings(options, _digest(options), __version__)
    compare_settings(share.rank, settings, begin.settings)
    exchange = meet(share, begin.address, options.device, options.step_timeout + EXCHANGE_SLACK_S)
    loaded = load(options, lambda _stage, _fraction: None, exchange)
    channel.send(Joined(share.rank, settings_digest(settings)))
    follower = Follower(loaded.runner, share.rank, settings_digest(settings))
    for message in messages:
        match message:
            case Run():
                channel.send(follower.run(message))
            case HashState():
                channel.send(follower.hash(message))
            case Leave():
                if loaded.spill:
                    loaded.spill.close(SETTLE_S)
                part_ways()
                return


def _one_line(error: Exception) -> str:
    words = " ".join(str(error).split())
    return words if isinstance(error, LockstepError) else f"{type(error).__name__}: {words}"


def _limits(options: ServingOptions, loaded: Loaded) -> SchedulerLimits:
    return SchedulerLimits(
        context=options.context,
        slots=options.parallel,
        pool_pages=loaded.pool_pages,
        prompt_slice=options.slice_tokens,
        max_queued=options.max_queued,
        max_queued_tokens=options.max_queued_tokens,
        step_rows=MAX_STEP_ROWS,
        max_drafts=loaded.max_drafts,
    )


def _kept_limits(options: ServingOptions, sizes: KeptSizes) -> KeptLimits:
    return KeptLimits(
        budget_bytes=int(options.kept_gib * GIB),
        state_bytes=sizes.state_bytes,
        logits_bytes=sizes.logits_bytes,
        page_bytes=sizes.page_bytes,
        spill_bytes=int(options.spill_gib * GIB) if options.spill_dir else 0,
        share=options.kept_share,
        grid_tokens=pages_of(options.kept_grid) * PAGE_TOKENS,
    )


def _ready(options: ServingOptions, loaded: Loaded) -> Ready:
    return Ready(
        context=options.context,
        slots=options.parallel,
        pool_tokens=loaded.pool_pages * PAGE_TOKENS,
        vocab_size=loaded.config.text.vocab_size,
        device=options.device,
        engine_version=__version__,
        build_digest=loaded.digest,
    )


def load(options: ServingOptions, progress: Callable[[str, float], None], exchange: Exchange = ALONE) -> Loaded:
    """Checkpoint, model and memory as `options` asks, this rank's share of them. `progress(stage, fraction)` is told as it goes.

    Raises LoadError or the reader's own errors, each naming what was found and what was needed.
    """
    progress("checkpoint", 0.0)
    checkpoint = Checkpoint(options.model)
    text = checkpoint.config.text
    if options.context > text.max_position_embeddings:
        raise LoadError(f"--context {options.context}; this checkpoint was made for at most {text.max_position_embeddings} tokens")
    device = options.device if options.ranks == 1 or options.device == "cpu" else f"{options.device}:{exchange.share.rank}"
    dtype = torch.float32 if options.device == "cpu" else torch.bfloat16
    if options.launch_table:
        use_table(options.launch_table, device, options.dense, options.ranks)
    progress("weights", 0.1)
    model = GlmModel.load(coded_weights(checkpoint, options.dense, device), checkpoint.config, device, dtype, exchange)
    tower = _tower(options, checkpoint, model)
    progress("memory", 0.9)
    # What is free differs from rank to rank, and page numbers must not: every rank has as many pages as the fullest card holds.
    free = int(least(exchange, free_bytes(device, options.ranks), device))
    pages = pool_pages(options, needs(options, text, dtype, exchange.share), free)
    pool = TokenPool(text, pages, device, dtype, options.kv)
    slots = StateSlots(text, options.parallel, device, dtype, share=exchange.share)
    vocabulary = _used_vocabulary(options, text.vocab_size)
    drafting = load_drafting(options, Surroundings(checkpoint, model, vocabulary, pool.pages, options.parallel))
    spill = SpillFolder(options.spill_dir, exchange.share.rank, origin(options, _digest(options))) if options.spill_dir else None
    grammars = _grammars(options)
    runner = Runner(model, pool, slots, vocabulary, drafting.drafter, spill, tower, grammars)
    if drafting.unknown_costs:
        measure_steps(model, drafting.unknown_costs)
    # From here on nothing is measured. The first grammar would hold up a step, and with it all who run, until it is loaded.
    threading.Thread(target=grammars, name="grammars").start()
    kept = _kept_limits(options, runner.kept_sizes)
    return Loaded(runner, drafting.max_drafts, checkpoint.config, _digest(options), pool.pages, kept, spill)


def _tower(options: ServingOptions, checkpoint: Checkpoint, model: GlmModel) -> VisionTower | None:
    """The vision tower on rank 0, which has the only one."""
    vision = checkpoint.config.vision
    if vision is None or not options.vision or model.exchange.share.rank:
        return None
    params = Params(checkpoint, "model.visual.", torch.device(model.device), model.dtype)
    with torch.inference_mode():
        return VisionTower(params, vision, read_processor_config(options.model, vision).pixels)


def _grammars(options: ServingOptions) -> Callable[[], Backend]:
    """The grammar library, which takes a second or two to load."""

    @functools.cache
    def loaded() -> Backend:
        from grammars.backend import XGrammar

        stops = read_generation_config(options.model).eos_token_ids
        return XGrammar(Vocabulary.of(SpelledTokenizer.load(options.model), stops))

    return loaded


def _used_vocabulary(options: ServingOptions, rows: int) -> int:
    """Ids below it have a spelling; the head's rows above are padding."""
    highest = max(Tokenizer.from_file(str(options.model / "tokenizer.json")).get_vocab().values())
    if highest >= rows:
        raise LoadError(f"tokenizer.json has id {highest}, the head {rows} rows; needed: a tokenizer of this checkpoint")
    return highest + 1


def _digest(options: ServingOptions) -> str:
    """16 hex digits over what decides a reply's bits: engine, PyTorch, device, ranks, forms, the checkpoint's two descriptions."""
    facts = (__version__, torch.__version__, options.device, options.ranks, options.dense, options.kv)
    told = hashlib.sha256(" ".join(map(str, facts)).encode())
    for name in ("manifest.json", "config.json"):
        path = options.model / name
        told.update(path.read_bytes() if path.exists() else b"-")
    return told.hexdigest()[:16]
