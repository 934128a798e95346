"""Takes from this process, for good, what a decoder of strangers' files must not have: files, network, other processes, much memory.

Linux only; each layer that the kernel lacks is left out of the level that is told. Knows no media. Standard library only.
"""

import ctypes
import errno
import os
import platform
import resource
import struct

_NO_NEW_PRIVS, _DUMPABLE, _SECCOMP = 38, 4, 22
_CREATE_RULESET, _RESTRICT_SELF, _VERSION_FLAG = 444, 446, 1
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
# Numbers of the calls that decoding into memory and answering on an open pipe need. None of them opens, connects, forks or signals others.
_CALLS = {
    "x86_64": (0xC000003E, {
        "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12,
        "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "writev": 20, "sched_yield": 24, "mremap": 25, "madvise": 28,
        "getpid": 39, "exit": 60, "sysinfo": 99, "sigaltstack": 131, "gettid": 186, "futex": 202, "sched_getaffinity": 204,
        "clock_gettime": 228, "exit_group": 231, "getrandom": 318,
    }),
    "aarch64": (0xC00000B7, {
        "close": 57, "lseek": 62, "read": 63, "write": 64, "writev": 66, "fstat": 80, "exit": 93, "exit_group": 94, "futex": 98,
        "clock_gettime": 113, "sched_getaffinity": 123, "sched_yield": 124, "sigaltstack": 132, "rt_sigaction": 134,
        "rt_sigprocmask": 135, "rt_sigreturn": 139, "getpid": 172, "gettid": 178, "sysinfo": 179, "brk": 214, "munmap": 215,
        "mremap": 216, "mmap": 222, "mprotect": 226, "madvise": 233, "getrandom": 278,
    }),
}  # fmt: skip

_libc = ctypes.CDLL(None, use_errno=True)


def enter(memory_bytes: int, cpu_s: int) -> str:
    """Lock this process in; what it needs to import must be imported. Returns the layers that hold, say `landlock 7, seccomp, rlimits`.

    Of what is open the three standard files stay."""
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    _limit(memory_bytes, cpu_s)
    layers = ["rlimits"]
    _libc.prctl(_DUMPABLE, 0, 0, 0, 0)
    if _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        version = _close_files()
        layers = ["seccomp"] * _filter_calls() + layers
        layers = [f"landlock {version}"] * (version > 0) + layers
    return ", ".join(layers)


def _limit(memory_bytes: int, cpu_s: int) -> None:
    """No new descriptors, no written files, no dumps, no processes; the kernel ends what computes or grows too long."""
    wanted = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_CPU: cpu_s,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
    }
    for kind, value in wanted.items():
        resource.setrlimit(kind, (value, value))


def _close_files() -> int:
    """Landlock without a single rule: no path can be opened, no port used. Its version, 0 if the kernel has none."""
    version = _libc.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    if version < 1:
        return 0
    files = (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1
    rules = struct.pack("=QQQ", files, 3, 3)[: 8 if version < 4 else 16 if version < 6 else 24]
    ruleset = _libc.syscall(_CREATE_RULESET, rules, len(rules), 0)
    if ruleset < 0:
        return 0
    held = _libc.syscall(_RESTRICT_SELF, ruleset, 0) == 0
    os.close(ruleset)
    return version if held else 0


def _filter_calls() -> bool:
    """A seccomp filter that refuses every call but `_CALLS`. False if the kernel or this architecture has none."""
    known = _CALLS.get(platform.machine())
    if known is None:
        return False
    architecture, calls = known
    numbers = sorted(calls.values())
    steps = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    steps += [(_EQUAL, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    steps += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    handle = struct.pack("@HP", len(steps), ctypes.addressof(program))
    return _libc.prctl(_SECCOMP, 2, handle, 0, 0) == 0
