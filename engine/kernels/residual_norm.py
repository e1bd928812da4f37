"""Bias, residual and LayerNorm in one pass: the launch."""

import numpy as np
from torch import Tensor

from penstock.engine.kernels.library import kernel, pointer, pointer_or_null, row_geometry


def residual_norm(
    out: Tensor, x: Tensor, bias: Tensor | None, residual: Tensor | None, gamma: Tensor, beta: Tensor | None, eps: float
) -> None:
    """out = LayerNorm(x + bias + residual) * gamma + beta, row by row.

    out, x, residual [R, H]; bias, gamma, beta [H]: all float16 or all bfloat16, H a multiple of 8 up to 8,192. `out`
    may be `x` or `residual`, but must not overlap them otherwise. One launch. Raises ValueError for anything else.
    """
    _launch(out, None, x, bias, residual, gamma, beta, eps)


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
    _launch(out, total, x, bias, residual, gamma, beta, eps)


def _launch(
    out: Tensor,
    total: Tensor | None,
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    gamma: Tensor,
    beta: Tensor | None,
    eps: float,
) -> None:
    dtype, shape = out.dtype, out.shape
    rows, hidden = shape
    geometry = row_geometry(rows, hidden)
    args = (
        pointer("out", out, dtype, shape),
        pointer_or_null("total", total, dtype, shape),
        pointer("x", x, dtype, shape),
        pointer_or_null("bias", bias, dtype, (hidden,)),
        pointer_or_null("residual", residual, dtype, shape),
        pointer("gamma", gamma, dtype, (hidden,)),
        pointer_or_null("beta", beta, dtype, (hidden,)),
        rows,
        np.int32(hidden),
        np.float32(eps),
    )
    if rows:
        kernel("residual_norm", f"residual_norm_{geometry.entry}", dtype)(geometry.grid, geometry.block, args)
