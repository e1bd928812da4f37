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

    Compiled once a process, in about a second. Raises UnsupportedDevice where that is impossible.
    """
    return _kernel(source, entry, dtype, activation, torch.cuda.current_device())


@cache
def _kernel(source: str, entry: str, dtype: torch.dtype, activation: str, device: int) -> Kernel:
    if torch.cuda.get_device_capability(device) != CAPABILITY:
        raise UnsupportedDevice(f"{source} is for devices of compute capability {CAPABILITY}.")
    try:
        cubin = _compiled(f"#define ACTIVATION {activation}\n{source_text(source, dtype)}")
    except Exception as error:  # of the compiler's binding, whose own types depend on CuPy's version
        raise UnsupportedDevice(f"{source} was not compiled: {error}") from error
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{source}.cubin"
        path.write_bytes(cubin)
        return Kernel(import_module("cupy").RawModule(path=str(path)).get_function(entry), device)


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
