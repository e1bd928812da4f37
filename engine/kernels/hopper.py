"""Kernels with instructions that only Hopper has: compiled for sm_90a, which CuPy's RawModule cannot be asked for."""

from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.kernels.library import OPTIONS, Kernel, source_text

CAPABILITY = (9, 0)
_OPTIONS = (*OPTIONS, "-ftz=true", "-arch=sm_90a", "--device-as-default-execution-space")


def hopper_kernel(source: str, entry: str, dtype: torch.dtype, activation: str) -> Kernel:
    """`entry` of `source`.cu for `dtype`, with ACTIVATION a type of activations.cuh, on the current device.

    Compiled once a process, in about a second. Raises UnsupportedDevice where that is impossible, ValueError for a
    `dtype` without kernels.
    """
    return _kernel(source, entry, dtype, activation, torch.cuda.current_device())


@cache
def _kernel(source: str, entry: str, dtype: torch.dtype, activation: str, device: int) -> Kernel:
    if torch.cuda.get_device_capability(device) != CAPABILITY:
        raise UnsupportedDevice(f"{source} is for devices of compute capability {CAPABILITY}.")
    text = f"#define ACTIVATION {activation}\n{source_text(source, dtype)}"
    try:
        return _loaded(_compiled(text), entry, device)
    except Exception as error:  # of CuPy's bindings, whose types depend on its version; or there is no place for a file
        raise UnsupportedDevice(f"{source} was not compiled and loaded: {error}") from error


def _loaded(cubin: bytes, entry: str, device: int) -> Kernel:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        return Kernel(import_module("cupy").RawModule(path=str(path)).get_function(entry), device)  # reads it now


def _compiled(text: str) -> bytes:
    nvrtc: Any = import_module("cupy.cuda").nvrtc
    includes = import_module("cupy._core.core").assemble_cupy_compiler_options(())
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        nvrtc.compileProgram(program, (*includes, *_OPTIONS))
        cubin: bytes = nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError as error:
        raise UnsupportedDevice(nvrtc.getProgramLog(program)[:2000]) from error
    finally:
        nvrtc.destroyProgram(program)
    return cubin + b"\0"  # the binding takes the last byte for a string's end
