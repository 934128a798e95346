"""CUDA C++ compiled when it is first needed, and launched on torch's stream. Knows no kernel.

NVRTC and the driver are reached through cuda-bindings, which every CUDA build of torch brings along. Sources include nothing but
`device.cuh` and headers beside them, so no toolkit is needed.
"""

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# What one block may have on the smallest card a kernel has to run on (compute capability 12.0).
MOST_SHARED_BYTES = 99 << 10
_HEADER = Path(__file__).with_name("device.cuh")
Macros = Mapping[str, int]
Argument = Tensor | int | float
_KINDS = {int: ctypes.c_int, float: ctypes.c_float}


class CompileError(RuntimeError):
    """NVRTC refused a source; the message is its log."""


def target(device: torch.device) -> str:
    """The compile target of a device: `sm_90`, `sm_120`, .."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"


def compile_source(source: Path, macros: Macros, architecture: str) -> tuple[bytes, str]:
    """Machine code of `source` for `architecture`, and the compiler's report of what its kernels take. Needs NVRTC, but no GPU.

    Raises CompileError with the compiler's log.
    """
    nvrtc = _bindings("nvrtc")
    headers = [_HEADER, *sorted(source.parent.glob("*.cuh"))]
    given = [path.read_bytes() for path in headers], [path.name.encode() for path in headers]
    program = _checked(nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), len(headers), *given))
    options = [
        # What only this chip has (wgmma) belongs to a target of its own.
        f"--gpu-architecture={architecture}{'a' if architecture == 'sm_90' else ''}",
        "--std=c++17",
        "--ptxas-options=-v",
        *(f"-D{name}={value}" for name, value in macros.items()),
    ]
    words = [option.encode() for option in options]
    failed = nvrtc.nvrtcCompileProgram(program, len(words), words)[0]
    # One byte would be the interpreter's own b" ", which every text output would show overwritten from then on.
    log = b" " * (1 + _checked(nvrtc.nvrtcGetProgramLogSize(program)))
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.decode(errors="replace").rstrip("\0 \n")
    if failed != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise CompileError(f"{source.name} for {architecture} with {dict(macros)}: {text}")
    code = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
    _checked(nvrtc.nvrtcGetCUBIN(program, code))
    nvrtc.nvrtcDestroyProgram(program)
    return code, text


_waiting: set[int] = set()


class Beside:
    """Under `with`, launches go to a stream beside the current one, behind what that has so far; `join` lets it wait for them."""

    def __init__(self, device: torch.device) -> None:
        self._stream = _second_stream(device)
        self._context = torch.cuda.stream(self._stream)

    def __enter__(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        _waiting.add(self._stream.cuda_stream)
        self._context.__enter__()

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(*error)

    def join(self) -> None:
        """What comes next sees what ran beside."""
        current = torch.cuda.current_stream(self._stream.device)
        current.wait_stream(self._stream)
        _waiting.add(current.cuda_stream)


@cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class Kernel:
    """One kernel on one device."""

    def __init__(self, function: Any, device: torch.device, shared_bytes: int) -> None:
        self._function, self._device, self._shared = function, device, shared_bytes
        self._configs: dict[tuple[int, int, int, bool], Any] = {}

    def __call__(self, blocks: int, threads: int, arguments: Sequence[Argument], overlaps: bool = False) -> None:
        """Launch on the current stream of the kernel's device. Tensors go as pointers, int as 32-bit, float as fp32.

        A kernel that `overlaps` may begin before the launch in front of it has ended, and waits for it by itself.
        """
        driver = _bindings("driver")
        values = tuple(value.data_ptr() if isinstance(value, Tensor) else value for value in arguments)
        kinds = tuple(ctypes.c_void_p if isinstance(value, Tensor) else _KINDS[type(value)] for value in arguments)
        stream = torch.cuda.current_stream(self._device).cuda_stream
        # Behind another stream's work there is no launch in front to overlap with.
        config = self._config(blocks, threads, stream, overlaps and stream not in _waiting)
        _waiting.discard(stream)
        _checked(driver.cuLaunchKernelEx(config, self._function, (values, kinds), 0))

    def _config(self, blocks: int, threads: int, stream: int, overlaps: bool) -> Any:
        key = (blocks, threads, stream, overlaps)
        if key not in self._configs:
            driver = _bindings("driver")
            config = driver.CUlaunchConfig()
            config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
            config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
            config.sharedMemBytes, config.hStream = self._shared, driver.CUstream(stream)
            attribute = driver.CUlaunchAttribute()
            attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = int(overlaps)
            config.attrs, config.numAttrs = [attribute], 1
            self._configs[key] = config
        return self._configs[key]


def load(source: Path, macros: Macros, device: torch.device, shared: Mapping[str, int]) -> dict[str, Kernel]:
    """Kernels of `source` named by `shared`, each with its bytes of dynamic shared memory a block. Compiled once a process."""
    return dict(_load(source, tuple(sorted(macros.items())), device.index or 0, tuple(sorted(shared.items()))))


@cache
def _load(
    source: Path, macros: tuple[tuple[str, int], ...], index: int, shared: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, Kernel], ...]:
    driver = _bindings("driver")
    device = torch.device("cuda", index)
    code, _ = compile_source(source, dict(macros), target(device))
    with torch.cuda.device(device):
        torch.cuda.current_stream(device).synchronize()  # makes sure that torch's context is the current one
        module = _checked(driver.cuModuleLoadData(code))
        found = []
        for name, size in shared:
            function = _checked(driver.cuModuleGetFunction(module, name.encode()))
            most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _checked(driver.cuFuncSetAttribute(function, most, size))
            found.append((name, Kernel(function, device, size)))
    return tuple(found)


def _bindings(name: str) -> Any:
    """A module of cuda-bindings, which a CPU build of torch does not bring along."""
    return import_module(f"cuda.bindings.{name}")


def _checked(answer: tuple[Any, ...]) -> Any:
    """The value of a bindings call. Raises RuntimeError naming its status."""
    if int(answer[0]):
        raise RuntimeError(f"CUDA answered {answer[0].name}; needed success")
    return answer[1] if len(answer) > 1 else None
