"""Compilation of kernels for sm_90a, with instructions that only Hopper has: CuPy's RawModule cannot target it."""

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


@cache
def hopper_kernel(source: str, entry: str, dtype: torch.dtype, activation: str, device: int) -> Kernel:
    """`entry` of `source`.cu for `dtype`, with ACTIVATION a type of activations.cuh, on CUDA device `device`.

    Compiled once in a process, in about a second. Raises UnsupportedDevice where that is impossible, ValueError for a
    `dtype` without kernels.
    """
    if torch.cuda.get_device_capability(device) != CAPABILITY:
        raise UnsupportedDevice(f"{source} is for devices of compute capability {CAPABILITY}.")
    text = f"#define ACTIVATION {activation}\n{source_text(source, dtype)}"
    try:
        return _loaded(_compiled(text), entry, device)
    except Exception as error:  # the types of CuPy's errors depend on its version; temporary files fail too
        raise UnsupportedDevice(f"{source} was not compiled and loaded: {error}") from error


def _loaded(cubin: bytes, entry: str, device: int) -> Kernel:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        with torch.cuda.device(device):
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
