"""Launches of activations: with a bias in place, and gated."""

import numpy as np
from torch import Tensor

from penstock.engine.kernels.library import index_of, kernel, multiprocessors, pointer, pointer_or_null

KINDS = ("gelu", "gelu_tanh", "relu", "silu", "tanh", "quick_gelu", "gelu_10", "identity")
_THREADS, _VECTOR, _ROWS_IN_FLIGHT = 128, 8, 4  # as in activation.cu
_BLOCKS_PER_PROCESSOR = 16  # as many as fit
_MAX_GRID_Y = 65_535


def bias_activation(x: Tensor, bias: Tensor | None, kind: str) -> None:
    """x = act(x + bias), in place.

    x [R, I], bias [I]: float16 or bfloat16, I a multiple of 8. kind: one of KINDS; "gelu" is the exact one (by erf), to
    1 ulp. One launch, or none if there is nothing to do. Raises ValueError for anything else.
    """
    rows, width = x.shape
    grid, block = _geometry(rows, width, kind, index_of(x))
    args = (
        pointer("x", x, x.dtype, (rows, width)),
        pointer_or_null("bias", bias, x.dtype, (width,)),
        rows,
        np.int32(width),
    )
    if rows and not (kind == "identity" and bias is None):
        kernel("activation", f"bias_activation_{kind}", x)(grid, block, args)


def gated(out: Tensor, x: Tensor, kind: str) -> None:
    """out = act(x[:, :I]) * x[:, I:], as in GeGLU and SwiGLU.

    out [R, I], x [R, 2I]: float16 or bfloat16, I a multiple of 8; no aliasing. kind: one of KINDS. One launch.
    Raises ValueError for anything else.
    """
    rows, width = out.shape
    grid, block = _geometry(rows, width, kind, index_of(out))
    args = (
        pointer("out", out, out.dtype, (rows, width)),
        pointer("x", x, out.dtype, (rows, 2 * width)),
        rows,
        np.int32(width),
    )
    if rows:
        kernel("activation", f"gated_{kind}", out)(grid, block, args)


def _geometry(rows: int, width: int, kind: str, device: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Grid and block: columns along x, rows along y; a row a thread until the device is full, then four rows."""
    if kind not in KINDS:
        raise ValueError(f"activation {kind!r} is not one of {', '.join(KINDS)}")
    if width <= 0 or width % _VECTOR:
        raise ValueError(f"width {width}: must be a positive multiple of {_VECTOR}")
    vectors = width // _VECTOR
    across = min(_THREADS, 1 << (vectors - 1).bit_length())
    down = _THREADS // across
    columns = -(-vectors // across)
    enough = -(-_BLOCKS_PER_PROCESSOR * multiprocessors(device) // columns)
    blocks = min(-(-rows // down), max(enough, -(-rows // (down * _ROWS_IN_FLIGHT))), _MAX_GRID_Y)
    return (columns, blocks), (across, down)
