"""Runs external commands and starts the server process. Knows nothing of what they do."""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 5
TICK_S = 1.0


@dataclass(frozen=True)
class Done:
    status: int
    output: str


def find(tool: str, environment: Mapping[str, str]) -> str | None:
    """Full path of a tool on PATH."""
    return shutil.which(tool, path=environment.get("PATH"))


def ask(argv: Sequence[str], environment: Mapping[str, str], *, timeout_s: float) -> Done:
    """Run a short question; output and errors together. Status 127 where the tool cannot be run, 124 where it did not answer in time."""
    try:
        done = subprocess.run(
            list(argv),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        return Done(127, f"{argv[0]} cannot be run: {error.strerror}")
    except subprocess.TimeoutExpired:
        return Done(124, f"{argv[0]} did not answer within {timeout_s:g} s")
    return Done(done.returncode, done.stdout.decode("utf-8", "replace"))


def run(argv: Sequence[str], environment: Mapping[str, str], *, log: Path, on_tick: Callable[[], None] = lambda: None) -> int:
    """Run a command to its end, its output appended to `log`; returns its status (127: it cannot be run).

    It works in `/`, where nothing of the caller's is in its way, in its own process group, which an interrupt of this program ends whole.
    The kernel asks it to end where this program is killed. `on_tick` is called about once a second meanwhile.
    """
    with log.open("ab") as output:
        output.write(f"$ {' '.join(argv)}\n".encode())
        output.flush()
        try:
            process = subprocess.Popen(
                list(argv),
                env=dict(environment),
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        except OSError as error:
            output.write(f"{argv[0]} cannot be run: {error.strerror}\n".encode())
            return 127
        try:
            return _wait(process, on_tick)
        except BaseException:
            _end_group(process)
            raise


_LIBC, _PR_SET_PDEATHSIG = ctypes.CDLL(None), 1


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait(process: subprocess.Popen[bytes], on_tick: Callable[[], None]) -> int:
    while True:
        try:
            return process.wait(TICK_S)
        except subprocess.TimeoutExpired:
            on_tick()


def _end_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def start(argv: Sequence[str], environment: Mapping[str, str], *, log: Path, cwd: Path) -> int:
    """Start a server in a session of its own, output appended to `log`; returns its process number. Raises OSError."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(argv),
            env=dict(environment),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # The server outlives this program; the kernel's tables are asked about it, not this object.
    process.returncode = 0
    return process.pid
