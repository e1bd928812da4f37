"""Tensor maps (CUtensorMap): descriptions of matrices for the TMA, Hopper's copy engine."""

import ctypes
from functools import lru_cache

import torch
from torch import Tensor

from penstock.engine.kernels.launch import check, driver

_TYPES = {torch.float16: 6, torch.bfloat16: 9}  # CUtensorMapDataType
_SWIZZLE_128_BYTES, _PROMOTE_TO_256_BYTES = 3, 3
_BYTES, _ALIGNMENT = 128, 64


def tensor_map(matrix: Tensor, box_rows: int, box_columns: int) -> bytes:
    """The map of a contiguous [rows, columns], float16 or bfloat16, for a kernel's __grid_constant__ parameter.

    Boxes are [box_rows, box_columns], 128 bytes a row, swizzled. Beyond the matrix zeros are read and nothing is
    written. Raises RuntimeError with the driver's name for the error.
    """
    rows, columns = matrix.shape
    return _encode(matrix.data_ptr(), _TYPES[matrix.dtype], rows, columns, box_rows, box_columns)


@lru_cache(maxsize=4096)
def _encode(address: int, kind: int, rows: int, columns: int, box_rows: int, box_columns: int) -> bytes:
    space = ctypes.create_string_buffer(_BYTES + _ALIGNMENT)
    start = -ctypes.addressof(space) % _ALIGNMENT
    check(
        driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(ctypes.addressof(space) + start),
            kind,
            2,
            ctypes.c_void_p(address),
            (ctypes.c_uint64 * 2)(columns, rows),
            (ctypes.c_uint64 * 1)(columns * 2),  # bytes from row to row
            (ctypes.c_uint32 * 2)(box_columns, box_rows),
            (ctypes.c_uint32 * 2)(1, 1),
            0,  # not interleaved
            _SWIZZLE_128_BYTES,
            _PROMOTE_TO_256_BYTES,
            0,  # zeros beyond the matrix
        ),
        f"the tensor map of a matrix of {rows} x {columns}",
    )
    return space.raw[start : start + _BYTES]
