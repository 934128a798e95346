"""Why a server did not come up, in one line: its status and the lines of its log that say so, whatever it said last."""

import pytest

from fixtures.clone_box import Box
from recipe.steps.smoke import _ended

NOISE = ["2026-12-02 INFO lockstep.server: loading shard 7 of 36", "stub serves glm-5.3-flash"]
FRONT = "2026-12-02 10:00:00,000 ERROR lockstep.server: the server cannot serve: "


@pytest.mark.parametrize(
    ("log", "status", "code", "found"),
    [
        (
            [*NOISE, f"{FRONT}rank 1 ended with exit status 7", "INFO lockstep.server: draining"],
            3,
            "E_START",
            f"the server ended with status 3: {FRONT}rank 1 ended with exit status 7",
        ),
        (
            ["Traceback (most recent call last):", '  File "x.py", line 1', "torch.OutOfMemoryError: CUDA out of memory", "draining"],
            3,
            "E_START",
            "the server ended with status 3: torch.OutOfMemoryError: CUDA out of memory",
        ),
        (
            [
                "ImportError: cannot import name 'x'",
                f"{FRONT}exit status 1",
                *(f"INFO uvicorn.error: {word}" for word in ("Started", "Shutting down")),
            ],
            3,
            "E_START",
            f"the server ended with status 3: ImportError: cannot import name 'x'; {FRONT}exit status 1",
        ),
        ([*NOISE, "draining"], -9, "E_START", "the server ended by signal 9: " + "; ".join(NOISE)),
        (
            ["lockstep: --port 0; needed: 1 to 65535"],
            2,
            "E_START",
            "the server ended with status 2: lockstep: --port 0; needed: 1 to 65535",
        ),
        ([], None, "E_START", "the server ended: no line in its log"),
        ([f"{FRONT}a (window_too_large): the largest is 576", *NOISE, "draining"], 4, "E_CONTEXT", "the largest is 576"),
    ],
)
def test_the_cause_is_taken_from_the_log(log: list[str], status: int | None, code: str, found: str) -> None:
    failure = _ended(log, status)
    assert failure.code == code
    assert failure.found.endswith(found)


def test_a_rank_that_dies_is_named_and_not_the_farewell(box: Box) -> None:
    box.set_engine("broken", exit=3, cries=f"{FRONT}rank 1 ended by signal 11 (SIGSEGV)\nINFO lockstep.server: draining")
    done = box.run()
    assert done.returncode == 13
    (found,) = [line for line in done.stderr.splitlines() if "found:" in line]
    assert found.endswith(f"the server ended with status 3: {FRONT}rank 1 ended by signal 11 (SIGSEGV)")
