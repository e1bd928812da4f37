"""Needs of kernels of Hopper alone.

That is a compilation for sm_90a, which CuPy's RawModule cannot target, and tensor maps (CUtensorMap): descriptions of
matrices for the TMA, its copy engine.
"""

import ctypes
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.kernels.launch import check, driver
from penstock.engine.kernels.library import OPTIONS, Kernel, source_text

CAPABILITY = (9, 0)
_OPTIONS = (*OPTIONS, "-ftz=true", "-arch=sm_90a", "--device-as-default-execution-space")
_MAP_TYPES = {torch.int8: 0, torch.float16: 6, torch.bfloat16: 9}  # CUtensorMapDataType
_SWIZZLE_128_BYTES, _PROMOTE_TO_256_BYTES = 3, 3
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64


@cache
def hopper_kernel(source: str, entry: str, dtype: torch.dtype, activation: str | None, device: int) -> Kernel:
    """`entry` of `source`.cu for `dtype`, with ACTIVATION a type of activations.cuh if given, on CUDA device `device`.

    A source is compiled once in a process, in about a second. Raises UnsupportedDevice where that is impossible,
    ValueError for a `dtype` without kernels.
    """
    if torch.cuda.get_device_capability(device) != CAPABILITY:
        raise UnsupportedDevice(f"{source} is for devices of compute capability {CAPABILITY}.")
    text = source_text(source, dtype)
    if activation is not None:
        text = f"#define ACTIVATION {activation}\n{text}"
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


@cache
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


def tensor_map(matrix: Tensor, box_rows: int, box_columns: int) -> bytes:
    """The map of a contiguous [rows, columns], float16, bfloat16 or int8, for a kernel's __grid_constant__ parameter.

    Boxes are [box_rows, box_columns], 128 bytes a row, swizzled. Beyond the matrix zeros are read and nothing is
    written. Raises RuntimeError with the driver's name for the error.
    """
    rows, columns = matrix.shape
    kind = _MAP_TYPES[matrix.dtype], matrix.element_size()
    return _encode_map(matrix.data_ptr(), kind, rows, columns, box_rows, box_columns)


@lru_cache(maxsize=4096)
def _encode_map(address: int, kind: tuple[int, int], rows: int, columns: int, box_rows: int, box_columns: int) -> bytes:
    """kind: CUtensorMapDataType, and bytes of a value."""
    type_code, value_bytes = kind
    space = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
    start = -ctypes.addressof(space) % _MAP_ALIGNMENT
    check(
        driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(ctypes.addressof(space) + start),
            type_code,
            2,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * 2)(columns, rows),
            (ctypes.c_uint64 * 1)(columns * value_bytes),  # bytes from row to row
            (ctypes.c_uint32 * 2)(box_columns, box_rows),
            (ctypes.c_uint32 * 2)(1, 1),
            0,  # not interleaved
            _SWIZZLE_128_BYTES,
            _PROMOTE_TO_256_BYTES,
            0,  # zeros beyond the matrix
        ),
        f"the tensor map of a matrix of {rows} x {columns}",
    )
    return space.raw[start : start + _MAP_BYTES]
