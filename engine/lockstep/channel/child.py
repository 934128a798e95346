"""A blocking end of a channel: one reader thread, a queue of what arrived. Engine and ranks use it, towards their parent and each other."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lockstep.channel.frames import HEADER_BYTES, Message, body_length, encode, read

EXIT_ALONE = 4
MOST_RECEIVED = 1 << 20


class ChildChannel:
    """Wraps a connected socket. The inbox yields None once the other side, mostly the parent, is gone."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._inbox: queue.SimpleQueue[Message | Exception | None] = queue.SimpleQueue()
        self._closed = False
        self._parent_gone = threading.Event()
        self._ends_alone = False
        self._sending = threading.Lock()
        threading.Thread(target=self._read, name="channel-reader", daemon=True).start()

    @classmethod
    def from_fd(cls, fd: int) -> ChildChannel:
        """Open the socket inherited as descriptor `fd`."""
        return cls(socket.socket(fileno=fd))

    @property
    def closed(self) -> bool:
        """True once the parent is gone and its last message was taken."""
        return self._closed

    @contextmanager
    def ending_with_parent(self) -> Iterator[None]:
        """Inside, a parent that goes ends this process at once with EXIT_ALONE: for long work that does not look at the inbox."""
        self._ends_alone = True
        if self._parent_gone.is_set():
            os._exit(EXIT_ALONE)
        try:
            yield
        finally:
            self._ends_alone = False

    def send(self, message: Message) -> None:
        """Send one message, from any thread; a parent that is gone is noticed by `closed`, not here."""
        frame = encode(message)
        try:
            with self._sending:
                self._socket.sendall(frame)
        except OSError:
            self._closed = True

    def pending(self, wait_s: float) -> Iterator[Message]:
        """Messages that have arrived; waits up to `wait_s` for the first. Raises FrameError for bytes that are none."""
        try:
            item = self._inbox.get(timeout=wait_s) if wait_s > 0 else self._inbox.get_nowait()
            while True:
                if item is None:
                    self._closed = True
                    return
                if isinstance(item, Exception):
                    raise item
                yield item
                item = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _read(self) -> None:
        try:
            while True:
                self._inbox.put(read(self._body))
        except EOFError:
            pass
        except Exception as error:  # handed to the loop, which ends the process with it
            self._inbox.put(error)
        self._inbox.put(None)
        self._parent_gone.set()
        if self._ends_alone:
            os._exit(EXIT_ALONE)

    def _body(self) -> bytes:
        return self._exactly(body_length(self._exactly(HEADER_BYTES)))

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                part = self._socket.recv(min(count - len(parts), MOST_RECEIVED))
            except OSError as error:
                raise EOFError from error
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)
