"""Launches that make rows in eight-bit integers, rotated, with a scale of each."""

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels import library
from penstock.engine.kernels.library import kernel, packed_norm, pointer, pointer_or_null
from penstock.engine.model.weights import Norm

ROTATED = 128  # columns that are rotated together
_INT8_ROWS = struct.Struct("PPP")


@dataclass(frozen=True, slots=True)
class Int8Rows:
    """Rows in eight-bit integers, on the device. A row is its integers times its scale, rotated."""

    integers: Tensor  # int8 [R, K]
    scales: Tensor  # float32 [R]


def int8_rows(out: Int8Rows, x: Tensor, factors: Tensor) -> None:
    """out = x * factors, rotated in blocks of 128, rounded to steps of the row's largest magnitude / 127.

    x [R, K], factors [K]: both float16 or both bfloat16, K a multiple of 128 up to 8,192. The scale of a row of zeros
    is 1; that of a row with NaN or infinity is NaN. One launch. Raises ValueError for anything else.
    """
    args = (pointer("x", x, x.dtype, tuple(x.shape)), _packed(out, x, factors))
    _launch("int8_rows", x, args)


def int8_norm(
    out: Tensor, integers: Int8Rows, x: Tensor, bias: Tensor | None, residual: Tensor, norm: Norm, factors: Tensor
) -> None:
    """As `residual_norm`, and `int8_rows` of the norm before it is rounded to `out`'s type. One launch.

    `out` may be `x` or `residual`. Raises ValueError as both do.
    """
    dtype, shape = out.dtype, tuple(out.shape)
    args = (
        pointer("out", out, dtype, shape),
        pointer("x", x, dtype, shape),
        pointer_or_null("bias", bias, dtype, shape[1:]),
        pointer("residual", residual, dtype, shape),
        packed_norm(norm, dtype, shape[1]),
        _packed(integers, out, factors),
    )
    _launch("int8_norm", out, args)


def _packed(rows: Int8Rows, like: Tensor, factors: Tensor) -> bytes:
    """The struct Int8Rows of int8_rows.cu."""
    if like.shape[1] % ROTATED:
        raise ValueError(f"rows of {like.shape[1]} columns, which must be a multiple of {ROTATED}")
    return _INT8_ROWS.pack(
        pointer("integers", rows.integers, torch.int8, tuple(like.shape)),
        pointer("scales", rows.scales, torch.float32, (len(like),)),
        pointer("factors", factors, like.dtype, tuple(like.shape[1:])),
    )


def _launch(name: str, like: Tensor, args: tuple[Any, ...]) -> None:
    rows, hidden = like.shape
    geometry = library.row_geometry(rows, hidden, library.multiprocessors(library.index_of(like)))
    if rows:
        run = kernel("int8_rows", f"{name}_{geometry.entry}", like)
        run(geometry.grid, geometry.block, (*args, rows, np.int32(hidden)))
