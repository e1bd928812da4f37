"""Launches of the fused bias, residual and norm."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels import library
from penstock.engine.kernels.library import VECTOR, RowGeometry, kernel, packed_norm, pointer, pointer_or_null
from penstock.engine.model.weights import Norm

_NARROW, _NARROW_HIDDEN = ("w4_v1", 128), 128 * VECTOR  # split_norm's entry and threads for rows of up to this width


def residual_norm(
    out: Tensor, x: Tensor, bias: Tensor | None, residual: Tensor | None, norm: Norm, total: Tensor | None = None
) -> None:
    """out = norm(x + bias + residual), and total = x + bias + residual, row by row.

    out, x, residual, total [R, H]; bias and the norm's weights [H]: all float16 or all bfloat16, H a multiple of 8 up
    to 8,192. The norm is of the sum before it is rounded to total's type. `out` and `total` may each be `x` or
    `residual`, but may not overlap anything otherwise. One launch. Raises ValueError for anything else.
    """
    addends = pointer("x", x, out.dtype, tuple(out.shape)), _bias(bias, out)
    _launch_rows("residual_norm", out, total, addends, residual, norm)


def inner_norm(out: Tensor, total: Tensor, x: Tensor, inner: Norm, residual: Tensor, norm: Norm) -> None:
    """out = norm(inner(x) + residual), and total = inner(x) + residual: as `residual_norm`, inner(x) unrounded too."""
    addends = pointer("x", x, out.dtype, tuple(out.shape)), packed_norm(inner, out.dtype, out.shape[1])
    _launch_rows("inner_norm", out, total, addends, residual, norm)


def split_norm(
    out: Tensor, parts: Tensor, bias: Tensor | None, residual: Tensor | None, norm: Norm, total: Tensor | None = None
) -> None:
    """As `residual_norm` for few rows, with x the sum of `parts`, float32 [S, R, H]: see `split_product`."""
    (rows, hidden), geometry = out.shape, _geometry(out)
    of_parts = pointer("parts", parts, torch.float32, (len(parts), rows, hidden)), np.int32(len(parts))
    args = (*_arguments(out, total, (*of_parts, _bias(bias, out)), residual, norm), np.int32(hidden))
    entry, threads = _NARROW if hidden <= _NARROW_HIDDEN else (geometry.entry, geometry.block[0])
    if rows:
        kernel("residual_norm", f"split_norm_{entry}", out)((rows,), (threads,), args)


def _launch_rows(
    name: str, out: Tensor, total: Tensor | None, addends: tuple[Any, ...], residual: Tensor | None, norm: Norm
) -> None:
    """A kernel that loops over rows. addends: its arguments between total and residual."""
    (rows, hidden), geometry = out.shape, _geometry(out)
    args = (*_arguments(out, total, addends, residual, norm), rows, np.int32(hidden))
    if rows:
        kernel("residual_norm", f"{name}_{geometry.entry}", out)(geometry.grid, geometry.block, args)


def _geometry(out: Tensor) -> RowGeometry:
    return library.row_geometry(*out.shape, library.multiprocessors(library.index_of(out)))


def _arguments(
    out: Tensor, total: Tensor | None, addends: tuple[Any, ...], residual: Tensor | None, norm: Norm
) -> tuple[Any, ...]:
    dtype, shape = out.dtype, tuple(out.shape)
    return (
        pointer("out", out, dtype, shape),
        pointer_or_null("total", total, dtype, shape),
        *addends,
        pointer_or_null("residual", residual, dtype, shape),
        packed_norm(norm, dtype, shape[1]),
    )


def _bias(bias: Tensor | None, out: Tensor) -> int:
    return pointer_or_null("bias", bias, out.dtype, tuple(out.shape[1:]))
