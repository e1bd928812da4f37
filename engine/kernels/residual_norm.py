"""Bias, residual and LayerNorm in one pass: the launch."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import (
    VECTOR,
    index_of,
    kernel,
    multiprocessors,
    pointer,
    pointer_or_null,
    row_geometry,
)

_NARROW, _NARROW_HIDDEN = ("w4_v1", 128), 128 * VECTOR  # entry and threads of split_norm for rows that so many hold


def residual_norm(
    out: Tensor, x: Tensor, bias: Tensor | None, residual: Tensor | None, gamma: Tensor, beta: Tensor | None, eps: float
) -> None:
    """out = LayerNorm(x + bias + residual) * gamma + beta, row by row.

    out, x, residual [R, H]; bias, gamma, beta [H]: all float16 or all bfloat16, H a multiple of 8 up to 8,192. `out`
    may be `x` or `residual`, but must not overlap them otherwise. One launch. Raises ValueError for anything else.
    """
    _launch(out, None, x, None, bias, residual, gamma, beta, eps)


def residual_norm_sum(
    out: Tensor,
    total: Tensor,
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    beta: Tensor | None,
    eps: float,
) -> None:
    """As `residual_norm`, and total [R, H] = x + bias + residual, for models that normalise before each block.

    The norm is that of the sum before it is rounded to total's type. `total` too may be `x` or `residual`; not `out`.
    """
    _launch(out, total, x, None, bias, residual, gamma, beta, eps)


def split_norm(
    out: Tensor,
    total: Tensor | None,
    parts: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    beta: Tensor | None,
    eps: float,
) -> None:
    """As the two above, of the sum of `parts` float32 [S, R, H], for few rows: a block a row.

    With `total`, that too is written. `out` or `total` may be `residual`.
    """
    _launch(out, total, None, parts, bias, residual, gamma, beta, eps)


def _launch(
    out: Tensor,
    total: Tensor | None,
    x: Tensor | None,
    parts: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    beta: Tensor | None,
    eps: float,
) -> None:
    """Of x or of parts; the other is None."""
    dtype, (rows, hidden) = out.dtype, out.shape
    geometry = row_geometry(rows, hidden, multiprocessors(index_of(out)))
    outs = pointer("out", out, dtype, (rows, hidden)), pointer_or_null("total", total, dtype, (rows, hidden))
    tensors = (
        pointer_or_null("bias", bias, dtype, (hidden,)),
        pointer_or_null("residual", residual, dtype, (rows, hidden)),
        pointer("gamma", gamma, dtype, (hidden,)),
        pointer_or_null("beta", beta, dtype, (hidden,)),
    )
    scalars = np.int32(hidden), np.float32(eps)
    if parts is None:
        args: tuple[Any, ...] = (*outs, pointer_or_null("x", x, dtype, (rows, hidden)), *tensors, rows, *scalars)
        name, grid, block = f"residual_norm_{geometry.entry}", geometry.grid, geometry.block
    else:
        addends = pointer("parts", parts, torch.float32, (len(parts), rows, hidden))
        args = (*outs, addends, np.int32(len(parts)), *tensors, *scalars)
        entry, threads = _NARROW if hidden <= _NARROW_HIDDEN else (geometry.entry, geometry.block[0])
        name, grid, block = f"split_norm_{entry}", (rows,), (threads,)
    if rows:
        kernel("residual_norm", name, out)(grid, block, args)
