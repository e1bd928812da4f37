"""Launch of products of many rows with the activation, or rotary positions, in the epilogue, on Hopper."""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.epilogues import NOT_TURNED, activated, packed_rotary
from penstock.engine.kernels.hopper import hopper_kernel, tensor_map
from penstock.engine.kernels.library import VECTOR, index_of, pointer, pointer_or_null
from penstock.engine.kernels.wide_tile import BLOCK_ROWS, OUT_ROWS, SHARED_BYTES, THREADS, W_ROWS, num_blocks
from penstock.engine.model.weights import Heads, RotaryAttention

_STAGE_DEPTH = 64  # as in wide_product.cu


def prepare(epilogue: str, dtype: torch.dtype, device: int) -> None:
    """Compile and load for CUDA device `device`. Raises UnsupportedDevice where `wide_product` does not run."""
    hopper_kernel("wide_product", "wide_product", dtype, epilogue, device)


def wide_product(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, kind: str, *, is_gated: bool = False
) -> None:
    """out = act(x weight' + bias): out [R, N], x [R, K], weight [N, K], bias [N], all float16 or all bfloat16.

    is_gated: weight and bias have 2N rows, and out = act(first N columns) * last N columns, as in GeGLU.
    kind: one of activation.KINDS. N and K are multiples of 8; no aliasing. One launch, on compute capability 9.0.
    Raises ValueError for anything else, UnsupportedDevice elsewhere.
    """
    columns = 2 * out.shape[1] if is_gated else out.shape[1]
    _launch(out, x, weight, bias, columns, activated(kind, is_gated=is_gated), NOT_TURNED)


def turned_product(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    positions: Tensor,
    heads: Heads,
    rotary: RotaryAttention,
) -> None:
    """As `wide_product` without an activation, and then `rotate`; rounded once, after both.

    out [R, (queries + 2 keys) * dim]. positions int32 [R], each with a row in `rotary`'s angles, which are float32.
    Raises ValueError for heads without an epilogue too.
    """
    epilogue, packed = packed_rotary(out, positions, heads, rotary)
    _launch(out, x, weight, bias, out.shape[1], epilogue, packed)


def _launch(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, columns: int, epilogue: str, rotary: bytes
) -> None:
    """columns: of the product, and rows of weight. rotary: the kernel's struct."""
    (rows, width), depth = out.shape, x.shape[1]
    if width % VECTOR or depth % VECTOR or not width or not depth:
        raise ValueError(f"{rows} rows of {depth} to {width}: widths must be positive multiples of {VECTOR}")
    pointer("out", out, out.dtype, (rows, width))
    pointer("x", x, out.dtype, (rows, depth))
    pointer("weight", weight, out.dtype, (columns, depth))
    shift = pointer_or_null("bias", bias, out.dtype, (columns,))
    device = index_of(out)
    run = hopper_kernel("wide_product", "wide_product", out.dtype, epilogue, device)
    if not rows:
        return
    args = (
        tensor_map(out, OUT_ROWS, _STAGE_DEPTH),
        tensor_map(x, BLOCK_ROWS, _STAGE_DEPTH),
        tensor_map(weight, W_ROWS, _STAGE_DEPTH),
        shift,
        rotary,
        np.int32(rows),
        np.int32(width),
        np.int32(depth),
    )
    run((num_blocks(rows, columns, device),), (THREADS,), args, SHARED_BYTES)
