"""The probe between two ranks: right bytes pass, and a hang, a wrong byte or a crash each end in one line, with nobody left behind."""

import json
import multiprocessing
import time

import pytest

from fixtures import peer_faults
from peers.__main__ import EXIT_PEERS, main
from peers.probe import STAGES, Stage, WrongBytes, compare, pattern, probe


def test_two_ranks_get_each_others_bytes_and_the_command_says_how_fast(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--device", "cpu", "--timeout", "30"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert told["cause"] == ""
    assert set(told["gib_s"]) == {stage.name for stage in STAGES["cpu"]}
    assert all(speed > 0 for speed in told["gib_s"].values())


@pytest.mark.parametrize(
    ("stage", "limit_s", "cause"),
    [
        (peer_faults.HANG, 2.0, "h: rank 1 did not answer within 2 s"),
        (peer_faults.HANG_IN_EXCHANGE, 1.0, "x: rank 0 and rank 1 did not answer within 1 s"),
        (peer_faults.FLIP, 20.0, "f: rank 0: flipped: 1 of 1048576 differ, the first at 12345"),
        (peer_faults.CRASH, 20.0, "c: rank 1 ended by signal 11 (SIGSEGV)"),
    ],
)
def test_each_way_to_fail_is_named_and_ends_in_time(stage: Stage, limit_s: float, cause: str) -> None:
    others, began = multiprocessing.active_children(), time.monotonic()
    assert probe("cpu", limit_s, [stage]).cause.startswith(cause)
    assert time.monotonic() - began < 40
    assert multiprocessing.active_children() == others


def test_what_differs_is_counted_and_the_first_is_shown() -> None:
    sent = pattern(0, "cpu")
    came = sent.clone()
    came[0, 7] ^= 3
    came[0, 9] ^= 3
    with pytest.raises(WrongBytes, match=f"2 of {sent.numel()} differ, the first at 7: {int(came[0, 7])} came, {int(sent[0, 7])} was sent"):
        compare("a copy", came, sent)
    compare("a copy", sent, sent.clone())


def test_the_ranks_send_different_bytes() -> None:
    assert not pattern(0, "cpu").equal(pattern(1, "cpu"))


def test_a_command_that_finds_something_wrong_ends_with_its_status(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    assert main(["--device", "cuda", "--timeout", "1"]) == EXIT_PEERS
    assert "1 GPUs are visible; needed: 2" in json.loads(capfd.readouterr().out)["cause"]
