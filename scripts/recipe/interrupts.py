"""Signals as exceptions, and a place where they wait: clearing up is not interrupted again."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """This program was asked to end. `number` is the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


def listen() -> None:
    """From now on the signals that end a program raise Interrupted."""
    for number in HANDLED:
        signal.signal(number, _raise)


@contextlib.contextmanager
def held_off() -> Iterator[None]:
    """Signals that come meanwhile are forgotten: the work inside ends by itself."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
