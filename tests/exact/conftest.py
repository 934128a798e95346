"""What exactness tests share: the embedded checkpoint as a model, and processes that find the engine where the tests do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from lockstep.model.glm import GlmModel
from lockstep.weights import Checkpoint

ROOT = Path(__file__).parents[2]
EMBEDDED = ROOT / "embedded"


@pytest.fixture(scope="module", autouse=True)
def _package_on_the_path() -> Iterator[None]:
    """For a module only: tests of other folders may come in between."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT / "engine"))
        yield


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    torch.set_num_threads(1)
    return Checkpoint(EMBEDDED)


@pytest.fixture(scope="module")
def model(checkpoint: Checkpoint) -> GlmModel:
    return GlmModel.load(checkpoint, checkpoint.config, "cpu")


@pytest.fixture(scope="module")
def vocabulary() -> int:
    return 1 + max(Tokenizer.from_file(str(EMBEDDED / "tokenizer.json")).get_vocab().values())
