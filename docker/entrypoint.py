"""First process of the container: starts the server, keeps its output, passes signals on, ends with its status. Knows no more of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import BinaryIO

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOG = Path("/logs/server.log")
LAST_WORDS_S = 5.0
SIGNAL_BASE = 128


def copy(source: BinaryIO, log: BinaryIO) -> None:
    """Every line to the run folder, for who waits for the server, and to Docker's log."""
    for line in source:
        for place in (log, sys.stdout.buffer):
            place.write(line)
            place.flush()


def wait_for(pid: int) -> int:
    """The exit status of the server. As the first process this one also inherits, and has to bury, whoever lost its parent."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else SIGNAL_BASE - code


def main(arguments: list[str]) -> int:
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    server = subprocess.Popen(
        [sys.executable, "-m", "lockstep", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON),
    )
    assert server.stdout is not None
    with LOG.open("ab") as log:
        copying = threading.Thread(target=copy, args=(server.stdout, log), daemon=True)
        copying.start()
        for number in PASSED_ON:
            signal.signal(number, lambda number, frame: os.kill(server.pid, number))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        status = wait_for(server.pid)
        copying.join(LAST_WORDS_S)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
