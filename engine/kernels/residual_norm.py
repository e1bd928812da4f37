"""Launches of the fused bias, residual and LayerNorm."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels import library
from penstock.engine.kernels.library import VECTOR, kernel, pointer, pointer_or_null

_NARROW, _NARROW_HIDDEN = ("w4_v1", 128), 128 * VECTOR  # split_norm's entry and threads for rows of up to this width


def residual_norm(
    out: Tensor,
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    beta: Tensor | None,
    eps: float,
    total: Tensor | None = None,
) -> None:
    """out = LayerNorm(x + bias + residual) * gamma + beta, and total = x + bias + residual, row by row.

    out, x, residual, total [R, H]; bias, gamma, beta [H]: all float16 or all bfloat16, H a multiple of 8 up to 8,192.
    The norm is of the sum before it is rounded to total's type. `out` and `total` may each be `x` or `residual`, but
    may not overlap anything otherwise. One launch. Raises ValueError for anything else.
    """
    rows, hidden = out.shape
    geometry = library.row_geometry(rows, hidden, library.multiprocessors(library.index_of(out)))
    addends = (pointer("x", x, out.dtype, (rows, hidden)),)
    args = _arguments(out, total, addends, bias, residual, gamma, beta, (rows, np.int32(hidden), np.float32(eps)))
    if rows:
        kernel("residual_norm", f"residual_norm_{geometry.entry}", out)(geometry.grid, geometry.block, args)


def split_norm(
    out: Tensor,
    parts: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    beta: Tensor | None,
    eps: float,
    total: Tensor | None = None,
) -> None:
    """As `residual_norm` for few rows, with x the sum of `parts`, float32 [S, R, H]: see `split_product`."""
    rows, hidden = out.shape
    geometry = library.row_geometry(rows, hidden, library.multiprocessors(library.index_of(out)))
    addends = (pointer("parts", parts, torch.float32, (len(parts), rows, hidden)), np.int32(len(parts)))
    args = _arguments(out, total, addends, bias, residual, gamma, beta, (np.int32(hidden), np.float32(eps)))
    entry, threads = _NARROW if hidden <= _NARROW_HIDDEN else (geometry.entry, geometry.block[0])
    if rows:
        kernel("residual_norm", f"split_norm_{entry}", out)((rows,), (threads,), args)


def _arguments(
    out: Tensor,
    total: Tensor | None,
    addends: tuple[Any, ...],
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    beta: Tensor | None,
    scalars: tuple[Any, ...],
) -> tuple[Any, ...]:
    dtype, shape = out.dtype, tuple(out.shape)
    return (
        pointer("out", out, dtype, shape),
        pointer_or_null("total", total, dtype, shape),
        *addends,
        pointer_or_null("bias", bias, dtype, shape[1:]),
        pointer_or_null("residual", residual, dtype, shape),
        pointer("gamma", gamma, dtype, shape[1:]),
        pointer_or_null("beta", beta, dtype, shape[1:]),
        *scalars,
    )
