"""The engine process's entry: what it tells the front when it cannot load, and when a step breaks."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from fixtures.rank_threads import ThreadExchange, thread_exchanges
from lockstep import engine
from lockstep.config.model import read_model_config
from lockstep.config.serving import ServingOptions
from lockstep.config.share import Share
from lockstep.core.messages import Failed, FromEngine, Loading, Ready, Submit
from lockstep.core.plan import StepPlan, StepResult
from lockstep.core.types import EngineRequest, Sampling
from lockstep.run.capacity import needs

EMBEDDED = Path(__file__).parents[2] / "embedded"


class Front:
    """The front's end: remembers what it was told, sends one request."""

    closed = False

    def __init__(self) -> None:
        self.told: list[FromEngine] = []

    def send(self, message: FromEngine) -> None:
        self.told.append(message)

    def pending(self, wait_s: float) -> Iterable[object]:
        return [Submit(EngineRequest("a", (1,), Sampling(), 1))]

    @contextmanager
    def ending_with_parent(self) -> Iterator[None]:
        yield


@pytest.fixture(autouse=True)
def _signals_as_they_were():
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(options: ServingOptions) -> tuple[int, str, Front]:
    """Exit status, the last word, and all the front heard."""
    front = Front()
    status = engine.run_engine(options, front)  # type: ignore[arg-type]
    last = front.told[-1]
    assert isinstance(last, Failed)
    assert "\n" not in last.cause
    return status, last.cause, front


def test_a_folder_that_is_no_checkpoint_is_named(tmp_path: Path):
    status, cause, front = run(ServingOptions(tmp_path))
    assert status == engine.EXIT_CANNOT_LOAD
    assert cause.startswith(f"engine cannot load {tmp_path}: ")
    assert isinstance(front.told[0], Loading)


def test_a_window_the_checkpoint_was_not_made_for_is_refused():
    assert "--context 65536; this checkpoint was made for at most 32768 tokens" in run(ServingOptions(EMBEDDED, context=65536))[1]


@pytest.mark.parametrize(
    ("cards", "words"),
    [
        (0, "--device cuda, but PyTorch finds no CUDA device; needed: a visible GPU, or --device cpu"),
        (1, "--ranks 2, but PyTorch finds 1 CUDA devices; needed: one a rank"),
    ],
)
def test_missing_cards_are_named_before_ranks_begin(monkeypatch: pytest.MonkeyPatch, cards: int, words: str):
    def begun(*_: object) -> None:
        raise AssertionError("a rank was started")

    monkeypatch.setattr(engine, "Ranks", begun)
    monkeypatch.setattr("torch.cuda.is_available", lambda: cards > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: cards)
    status, cause, _ = run(ServingOptions(EMBEDDED, device="cuda", ranks=2))
    assert (status, cause) == (engine.EXIT_CANNOT_LOAD, f"engine cannot load {EMBEDDED}: {words}")


@pytest.mark.parametrize(
    ("second", "is_refused"),
    [
        ({"name": "RTX PRO 6000 Max-Q"}, False),
        ({"name": "RTX 5090", "multi_processor_count": 170}, True),
        ({"name": "H200", "major": 9}, True),
    ],
)
def test_cards_that_would_compute_other_bits_are_named_before_ranks_begin(
    monkeypatch: pytest.MonkeyPatch, second: dict[str, object], is_refused: bool
):
    def begun(*_: object) -> None:
        raise RuntimeError("ranks begin")

    first = {"name": "RTX PRO 6000", "major": 12, "minor": 0, "multi_processor_count": 188}
    monkeypatch.setattr(engine, "Ranks", begun)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda at: SimpleNamespace(**first | (second if at else {})))
    cause = run(ServingOptions(EMBEDDED, device="cuda", ranks=2))[1]
    if is_refused:
        assert cause.endswith(f"--ranks 2 on RTX PRO 6000 and {second['name']}; needed: cards of one kind")
    else:
        assert cause.endswith("ranks begin")


@pytest.mark.parametrize("fullest", [0, 1])
def test_every_rank_has_the_pages_that_the_fullest_card_holds(monkeypatch: pytest.MonkeyPatch, fullest: int):
    options = ServingOptions(EMBEDDED, ranks=2, context=1024, parallel=4)
    needed = needs(options, read_model_config(EMBEDDED).text, torch.float32, Share(0, 2))
    rank = threading.local()
    monkeypatch.setattr(engine, "free_bytes", lambda *_: needed.fixed_bytes + needed.page_bytes * (20 if rank.number == fullest else 1000))

    def load(exchange: ThreadExchange) -> int:
        rank.number = exchange.share.rank
        return engine.load(options, lambda *_: None, exchange).pool_pages

    with ThreadPoolExecutor(2, initializer=torch.set_num_threads, initargs=(1,)) as threads:
        assert list(threads.map(load, thread_exchanges(2))) == [20, 20]


def test_a_broken_tokenizer_ends_in_one_line(tmp_path: Path):
    for path in EMBEDDED.iterdir():
        if path.suffix in {".json", ".safetensors", ".jinja"}:
            shutil.copy(path, tmp_path)
    (tmp_path / "tokenizer.json").write_text("{\n")
    status, cause, _ = run(ServingOptions(tmp_path, context=64, parallel=1))
    assert status == engine.EXIT_CANNOT_LOAD
    assert cause.startswith(f"engine cannot load {tmp_path}")


def test_a_step_that_breaks_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch):
    class Broken:
        def execute(self, plan: StepPlan) -> StepResult:
            raise RuntimeError("device lost\n  at step 3")

        def state_hash(self, request_id: str) -> str:
            raise AssertionError("no request ended")

    config = read_model_config(EMBEDDED)
    monkeypatch.setattr(engine, "load", lambda *_: engine.Loaded(Broken(), 0, config, "0", 256))  # type: ignore[arg-type]
    status, cause, front = run(ServingOptions(EMBEDDED))
    assert status == engine.EXIT_BROKE
    assert cause == "engine broke while serving: RuntimeError: device lost at step 3"
    assert any(isinstance(message, Ready) for message in front.told)
