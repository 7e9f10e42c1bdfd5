"""Compiles and launches a CUDA kernel from the package, with what torch has already loaded: NVRTC and the driver.

No compiler and no build step on the user's machine; the cubin is for the GPU at hand. The launch takes raw pointers and
the current stream, so it can be captured in a CUDA graph.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch

from draftfast_vllm.errors import DraftfastError

SOURCES = Path(__file__).parent / "cuda"
# Of the driver's header.
FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE, LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION = 8, 4


class LaunchAttribute(ctypes.Structure):
    """`CUlaunchAttribute`, of which the dimensions of a cluster are all that is used here."""

    _fields_: ClassVar = [
        ("id", ctypes.c_uint64),
        *((name, ctypes.c_uint) for name in ("x", "y", "z")),
        ("rest_of_value", ctypes.c_byte * 52),
    ]


class LaunchConfig(ctypes.Structure):
    """`CUlaunchConfig`."""

    _fields_: ClassVar = [
        *((f"{what}_{axis}", ctypes.c_uint) for what in ("grid", "block") for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)),
        ("n_attributes", ctypes.c_uint),
    ]


class Function:
    """One `extern "C"` kernel of a compiled source."""

    def __init__(self, handle: ctypes.c_void_p, name: str) -> None:
        self._handle, self.name = handle, name

    def allow_shared(self, n_bytes: int) -> None:
        """Lets launches take this much dynamic shared memory."""
        _driver("cuFuncSetAttribute", self._handle, FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE, n_bytes)

    def most_clusters(self, cluster: int, block: int, shared_bytes: int) -> int:
        """Clusters of this many blocks that the device runs at a time."""
        dimension = LaunchAttribute(LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, cluster, 1, 1)
        config = LaunchConfig(cluster, 1, 1, block, 1, 1, shared_bytes, None, ctypes.pointer(dimension), 1)
        found = ctypes.c_int()
        _driver("cuOccupancyMaxActiveClusters", ctypes.byref(found), self._handle, ctypes.byref(config))
        return found.value

    def launch(self, grid: int, block: int, shared_bytes: int, arguments: Sequence[torch.Tensor | int | None]) -> None:
        """On torch's current stream. A tensor is passed as its address, None as null, a number as 32 bits."""
        values = [_argument(argument) for argument in arguments]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _driver("cuLaunchKernel", self._handle, grid, 1, 1, block, 1, 1, shared_bytes, stream, pointers, None)


def _argument(argument: torch.Tensor | int | None) -> ctypes.c_void_p | ctypes.c_uint32:
    if argument is None or isinstance(argument, torch.Tensor):
        return ctypes.c_void_p(None if argument is None else argument.data_ptr())
    return ctypes.c_uint32(argument)


class Program:
    """The kernels of one source, compiled, loaded on the current device."""

    def __init__(self, cubin: bytes) -> None:
        self._module = ctypes.c_void_p()
        # torch has made the device's primary context current by the time there are weights on it.
        torch.cuda.current_stream().synchronize()
        _driver("cuModuleLoadData", ctypes.byref(self._module), cubin)

    def function(self, name: str) -> Function:
        """The kernel with this name."""
        handle = ctypes.c_void_p()
        _driver("cuModuleGetFunction", ctypes.byref(handle), self._module, name.encode())
        return Function(handle, name)


def architecture() -> str:
    """`sm_90`, or with the architecture's own instructions from Blackwell on, where E2M1 converts in hardware."""
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}" + ("a" if major >= 10 else "")


def cached_cubin(source: Path, options: Sequence[str]) -> bytes:
    """The cubin from vLLM's cache folder, where it is kept: compiling takes seconds."""
    from vllm import envs

    if not source.is_file():
        raise DraftfastError(f"`{source.name}` is not in the package", "install the wheel, which has it")
    digest = hashlib.sha256(repr((options, torch.version.cuda)).encode())
    for path in sorted(source.parent.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    folder = Path(envs.VLLM_CACHE_ROOT) / "draftfast"
    path = folder / f"{source.stem}-{digest.hexdigest()[:32]}.cubin"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as part:
            part.write(compile_cubin(source, [*options, f"--include-path={source.parent}"]))
        os.replace(part.name, path)
    return path.read_bytes()


def compile_cubin(source: Path, options: Sequence[str]) -> bytes:
    """The cubin of a source file; an error shows what the compiler said."""
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    _check(
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.read_bytes(), source.name.encode(), 0, None, None),
        "nvrtcCreateProgram",
    )
    encoded = [option.encode() for option in options]
    status = nvrtc.nvrtcCompileProgram(program, len(encoded), (ctypes.c_char_p * len(encoded))(*encoded))
    if status:
        log = _output(nvrtc, program, "ProgramLog").decode(errors="replace").strip("\0\n")
        raise DraftfastError(
            f"`{source.name}` does not compile for {architecture()}: {log}", 'serve with `"backend": "vllm"`'
        )
    cubin = _output(nvrtc, program, "CUBIN")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin


def _output(nvrtc: Any, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)), f"nvrtcGet{what}Size")
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(nvrtc, f"nvrtcGet{what}")(program, buffer), f"nvrtcGet{what}")
    return buffer.raw


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    """The library that torch was built with: on the loader's path, or in the packages beside torch."""
    major = (torch.version.cuda or "0").partition(".")[0]
    for name in (f"libnvrtc.so.{major}", "libnvrtc.so"):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    for path in sorted(Path(torch.__file__).parent.parent.glob(f"nvidia/*/lib/libnvrtc.so.{major}*")):
        return ctypes.CDLL(str(path))
    raise DraftfastError(f"NVRTC of CUDA {major} is not there", 'serve with `"backend": "vllm"`')


@functools.cache
def _libcuda() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _driver(name: str, *arguments: Any) -> None:
    _check(getattr(_libcuda(), name)(*arguments), name)


def _check(status: int, name: str) -> None:
    if status:
        raise DraftfastError(f"CUDA call `{name}` failed with status {status}", 'serve with `"backend": "vllm"`')
