"""Whatever ends a server's engine is named to its clients, and the server started next serves the same bits, with what was on disk."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fixtures.fronts import Front, end_front, events, start_embedded
from fixtures.processes import other_rank

CHAT = "/v1/chat/completions"
TEXTS = ("one red cat", "count the rivers of a city, " * 12, "name a table " * 30)
Told = tuple[str, str, int]


@contextmanager
def server(folder: Path, ranks: int, *flags: str) -> Iterator[Front]:
    spill = ("--spill-dir", str(folder / "spill"), "--drafter", "mtp", "--state-hashes", "--context", "2048")
    front = start_embedded(folder, "--ranks", str(ranks), *spill, *flags)
    try:
        front.wait_for("/health/ready", 200, limit_s=50)
        yield front
    finally:
        end_front(front)


def tell(front: Front) -> list[Told]:
    """Hashes of each reply's tokens and state, and how much of its prompt was cached."""
    told = []
    for text in TEXTS:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 6}
        reply = front.http.post(CHAT, json=body)
        assert reply.status_code == 200, reply.text
        figures = reply.json()["lockstep"]
        cached = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        told.append((figures["token_sha"], figures["state_hash"], cached))
    return told


def bits(told: list[Told]) -> list[tuple[str, str]]:
    return [(tokens, state) for tokens, state, _ in told]


def rank_1(front: Front) -> int:
    """Process id of the other rank."""
    return other_rank(front.engine_pid)


def strike(front: Front, victim: Callable[[Front], int], with_what: signal.Signals) -> tuple[str, str]:
    """Hit a process in the middle of a streamed reply; what the stream and later requests are told."""
    lines: list[str] = []
    began = threading.Event()

    def read() -> None:
        body: dict[str, Any] = {"messages": [{"role": "user", "content": "go on"}], "stream": True, "max_tokens": 1500, "ignore_eos": True}
        with front.http.stream("POST", CHAT, json=body, timeout=40) as reply:
            for line in reply.iter_lines():
                lines.append(line)
                if len(lines) == 9:
                    began.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert began.wait(20)
    os.kill(victim(front), with_what)
    reader.join(40)
    assert not reader.is_alive(), "a client is told, whatever hangs"
    *_, error, done = events("\n\n".join(line for line in lines if line))
    assert done == "[DONE]"
    later = front.http.post(CHAT, json={"messages": [{"role": "user", "content": "later"}]})
    assert (later.status_code, later.json()["error"]["code"]) == (503, "engine_dead")
    assert front.http.get("/health").json()["status"] == "dead"
    return error["error"]["message"], later.json()["error"]["message"]


ENDS = {
    "rank 0 killed": (lambda front: front.engine_pid, signal.SIGKILL, "engine process ended by signal 9 (SIGKILL)"),
    "rank 1 killed": (rank_1, signal.SIGKILL, "rank 1 ended by signal 9 (SIGKILL)"),
    "rank 1 hangs": (rank_1, signal.SIGSTOP, "did not end within 2 s (--step-timeout): a rank hangs or is too slow"),
    "rank 0 hangs": (
        lambda front: front.engine_pid,
        signal.SIGSTOP,
        "engine process was not heard for 7 s while it had work; it was ended",
    ),
}


def test_each_end_of_either_rank_is_named_and_the_next_server_serves_the_same_bits(tmp_path: Path):
    with server(tmp_path, 2, "--step-timeout", "2") as front:
        wanted = tell(front)
        assert front.stop() == 0
    for name, (victim, with_what, cause) in ENDS.items():
        with server(tmp_path, 2, "--step-timeout", "2") as front:
            found = tell(front)
            assert bits(found) == bits(wanted), name
            if name == "rank 0 killed":
                assert all(cached >= 64 for _, _, cached in found[1:]), "from what the first server left when it was stopped"
            told = strike(front, victim, with_what)
            assert all(cause in words for words in told), (name, told)
            if name.startswith("rank 1"):
                assert not list((tmp_path / "spill").glob("rank*-*.kept")), "an engine that found itself broken leaves no states"


def test_files_broken_between_two_servers_are_named_and_their_prompts_computed_again(tmp_path: Path):
    with server(tmp_path, 1) as front:
        wanted = tell(front)
        assert front.stop() == 0
    for path in (tmp_path / "spill").glob("rank0-*.kept"):
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 8
        path.write_bytes(content)
    with server(tmp_path, 1) as front:
        found = tell(front)
        assert bits(found) == bits(wanted)
        assert found[1][2] == 0
        assert "is not what was written (SHA-256 differs); its prompt is computed again" in front.log.read_text()
        again = tell(front)
        assert bits(again) == bits(wanted)
        assert all(cached for _, _, cached in again[1:])


def test_a_folder_that_cannot_be_had_is_named_before_anything_is_loaded(tmp_path: Path):
    (tmp_path / "spill").write_text("")
    front = start_embedded(tmp_path, "--spill-dir", str(tmp_path / "spill" / "here"))
    assert front.process.wait(20) != 0
    assert "spill/here: Not a directory; needed: a folder this user may write to" in front.log.read_text()
    end_front(front)
