"""The verify gates over HTTP against the shipped command: two ranks, coded matrices and cache, MTP drafts, kept prompt states."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pytest

from fixtures.fronts import Front, serving, start_embedded
from recipe.ui import Ui
from verify import cli as quality

FLAGS = ("--context", "2048", "--ranks", "2", "--dense", "q4", "--kv", "fp8", "--drafter", "mtp")


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with serving(start_embedded(tmp_path_factory.mktemp("ranks"), *FLAGS), 50) as started:
        yield started


@pytest.mark.parametrize(
    ("name", "options", "row"),
    [
        ("gate", ["--only", "tool_calls"], "tool calls, drafted             6/6"),
        ("gatelong", ["--lengths", "300"], "300 tokens, drafted             2/2"),
        ("reuse", ["--only", "next_turn", "--lengths", "150"], "next turn                       2/2"),
        ("ranks", ["--only", "settings"], "settings of the ranks           2/2"),
    ],
)
def test_the_gates_pass(front: Front, name: str, options: list[str], row: str) -> None:
    out = io.StringIO()
    status = quality.run(options, Ui({}, out=out, err=out), front.url, name=name)
    assert status == 0, out.getvalue()
    assert row in out.getvalue()


def test_each_rank_is_named_in_the_log(front: Front) -> None:
    text = front.log.read_text()
    assert [f"rank {rank} lockstep.engine: begins" in text for rank in (0, 1)] == [True, True]
