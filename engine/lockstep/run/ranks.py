"""The other ranks as processes of this machine: starts them, talks to them over socket pairs, notices their end and says why.

Knows no plans and no tensors. Each rank ends by itself when rank 0 is gone, because its socket closes.
"""

import queue
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from lockstep.channel.child import ChildChannel
from lockstep.channel.client import FD_FLAG, death_cause
from lockstep.core.errors import LockstepError
from lockstep.core.messages import Failed
from lockstep.core.rank_messages import Begin, HashState, Joined, Leave, Ran, RankHash, Run

RANK_FLAG = "--rank"
_END_S = 3.0
_POLL_S = 0.5
_WAIT_S = 60.0


class _Link:
    """One other rank."""

    def __init__(self, rank: int, command: Sequence[str], log_dir: Path | None) -> None:
        self.rank = rank
        ours, theirs = socket.socketpair()
        with theirs, ExitStack() as held:
            log = held.enter_context((log_dir / f"rank-{rank}.log").open("ab")) if log_dir else None
            words, fds = [RANK_FLAG, str(rank), FD_FLAG, str(theirs.fileno())], [theirs.fileno()]
            self.process = subprocess.Popen([*command, *words], pass_fds=fds, stdout=log, stderr=log)
        self.channel = ChildChannel(ours)
        self.joined, self.settings = threading.Event(), ""
        self.ran = Ran(rank, 0, "")
        self.hashes: queue.SimpleQueue[RankHash] = queue.SimpleQueue()
        self.said = ""

    def read(self) -> str:
        """Take messages until the rank is gone; returns why it ended."""
        try:
            while not self.channel.closed:
                for message in self.channel.pending(_POLL_S):
                    self._take(message)
        except LockstepError as error:
            self.said = f"sent bytes that are no message: {error}"
        return self._cause()

    def _take(self, message: object) -> None:
        match message:
            case Joined():
                self.settings = message.settings
                self.joined.set()
            case Ran():
                self.ran = message
            case RankHash():
                self.hashes.put(message)
            case Failed(cause):
                self.said = cause
            case _:
                raise LockstepError(f"{type(message).__name__} is no message of a rank")

    def _cause(self) -> str:
        try:
            status = self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        return f"rank {self.rank}: {self.said}" if self.said else death_cause(status, f"rank {self.rank}")


class Ranks:
    """Ranks 1 .. `ranks` - 1, each started as `command` and told `begin`.

    `on_death(cause)` is called from a thread when one ends before `leave`, with words like "rank 1 ended by signal 9 (SIGKILL)".
    Each prints into a file of its own in `log_dir`, or where this process does.
    """

    def __init__(
        self, command: Sequence[str], ranks: int, begin: Begin, on_death: Callable[[str], None], log_dir: Path | None = None
    ) -> None:
        self._on_death = on_death
        self._leaving = False
        self._death: queue.Queue[str] = queue.Queue()
        self._links = [_Link(rank, command, log_dir) for rank in range(1, ranks)]
        for link in self._links:
            link.channel.send(begin)
            threading.Thread(target=self._watch, args=(link,), name=f"rank-{link.rank}", daemon=True).start()

    def wait_joined(self) -> None:
        """Return when every rank has loaded; one that ends instead ends this process through `on_death`."""
        for link in self._links:
            link.joined.wait()

    def settings(self) -> list[str]:
        """Digest of every joined rank's settings, in rank order."""
        return [link.settings for link in self._links]

    def ran(self) -> list[Ran]:
        """The newest step each rank has reported, in rank order."""
        return [link.ran for link in self._links]

    def tell(self, message: Run | HashState) -> None:
        """Send to every rank."""
        for link in self._links:
            link.channel.send(message)

    def hashes(self, request_id: str) -> list[str]:
        """Every rank's answer to HashState, in rank order."""
        answers = [link.hashes.get() for link in self._links]
        if any(answer.request_id != request_id for answer in answers):
            raise LockstepError(f"a rank hashed {[answer.request_id for answer in answers]}; needed: {request_id}")
        return [answer.state_hash for answer in answers]

    def cause_of_death(self, wait_s: float) -> str:
        """Why a rank ended, if one does within `wait_s`, else nothing. An exchange breaks before the rank's end is known."""
        try:
            return self._death.get(timeout=wait_s)
        except queue.Empty:
            return ""

    def leave(self, part_ways: Callable[[], None]) -> None:
        """Let every rank end with status 0; kill what has not ended 3 seconds after this one parted.

        `part_ways` leaves the exchange, which a library may do on all ranks together only: so before their ends are waited for.
        """
        self._leaving = True
        for link in self._links:
            link.channel.send(Leave())
        part_ways()
        deadline_s = time.monotonic() + _END_S
        for link in self._links:
            try:
                link.process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                link.process.kill()
                link.process.wait()

    def kill(self) -> None:
        """End every rank at once, also one that is stopped."""
        self._leaving = True
        for link in self._links:
            link.process.kill()

    def _watch(self, link: _Link) -> None:
        cause = link.read()
        if not self._leaving:
            self._death.put(cause)
            self._on_death(cause)


def orders(channel: ChildChannel) -> Iterator[object]:
    """In another rank: what rank 0 says, until it is gone."""
    while not channel.closed:
        yield from channel.pending(_WAIT_S)
