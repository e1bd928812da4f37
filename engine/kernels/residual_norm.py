"""Bias, residual and LayerNorm in one pass: the launch."""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import VECTOR, kernel, multiprocessors, pointer, pointer_or_null, row_geometry

_FEW_ROWS = 2048  # up to here a block a row is sooner done
_FEW_ENTRY, _FEW_THREADS = "w4_v1", 128
_FEW_HIDDEN = _FEW_THREADS * VECTOR
_WIDE_THREADS = 256


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
    geometry = row_geometry(rows, hidden, multiprocessors(out.device.index))
    tensors = (
        pointer_or_null("bias", bias, dtype, (hidden,)),
        pointer_or_null("residual", residual, dtype, (rows, hidden)),
        pointer("gamma", gamma, dtype, (hidden,)),
        pointer_or_null("beta", beta, dtype, (hidden,)),
    )
    source = pointer_or_null("x", x, dtype, (rows, hidden))
    outs = pointer("out", out, dtype, (rows, hidden)), pointer_or_null("total", total, dtype, (rows, hidden))
    scalars = np.int32(hidden), np.float32(eps)
    if not rows:
        return
    if parts is not None or rows <= _FEW_ROWS:
        splits = 0 if parts is None else len(parts)
        addends = pointer_or_null("parts", parts, torch.float32, (splits, rows, hidden))
        entry, threads = (_FEW_ENTRY, _FEW_THREADS) if hidden <= _FEW_HIDDEN else (geometry.entry, _WIDE_THREADS)
        short = (*outs, source, addends, np.int32(splits), *tensors, *scalars)
        kernel("residual_norm", f"short_norm_{entry}", dtype)((rows,), (threads,), short)
    else:
        args = (*outs, source, *tensors, rows, *scalars)
        kernel("residual_norm", f"residual_norm_{geometry.entry}", dtype)(geometry.grid, geometry.block, args)
