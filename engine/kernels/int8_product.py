"""Launch of products of eight-bit integers with the activation in the epilogue, on Hopper."""

import struct

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.hopper import hopper_kernel, tensor_map
from penstock.engine.kernels.int8_rows import Int8Rows
from penstock.engine.kernels.library import VECTOR, index_of, pointer, pointer_or_null
from penstock.engine.kernels.wide_product import activated
from penstock.engine.kernels.wide_tile import BLOCK_ROWS, OUT_ROWS, ROW_BYTES, SHARED_BYTES, THREADS, W_ROWS, num_blocks

_SCALES = struct.Struct("PP")
_DEPTH_STEP = 16  # bytes that the copy engine's rows are a multiple of


def int8_product(out: Tensor, x: Int8Rows, weight: Int8Rows, bias: Tensor | None, kind: str) -> None:
    """out = act(x weight' * their scales + bias): out [R, N], x [R, K], weight [N, K], bias [N].

    out and bias float16 or both bfloat16; kind: one of activation.KINDS. N is a multiple of 8, K of 16. Sums are exact,
    so a row of `out` depends on its own row of `x` alone. No aliasing. One launch, on compute capability 9.0. Raises
    ValueError for anything else, UnsupportedDevice elsewhere.
    """
    (rows, width), depth = out.shape, x.integers.shape[1]
    require_sizes(rows, width, depth, VECTOR)
    pointer("out", out, out.dtype, (rows, width))
    scales = packed_scales(x, weight, rows, width, depth)
    shift = pointer_or_null("bias", bias, out.dtype, (width,))
    device = index_of(out)
    run = hopper_kernel("int8_product", "int8_product", out.dtype, activated(kind), device)
    if not rows:
        return
    args = (
        tensor_map(out, OUT_ROWS, ROW_BYTES // out.element_size()),
        tensor_map(x.integers, BLOCK_ROWS, ROW_BYTES),
        tensor_map(weight.integers, W_ROWS, ROW_BYTES),
        scales,
        shift,
        np.int32(rows),
        np.int32(width),
        np.int32(depth),
    )
    run((num_blocks(rows, width, device),), (THREADS,), args, SHARED_BYTES)


def require_sizes(rows: int, width: int, depth: int, width_step: int) -> None:
    """Raise ValueError for a product that has no kernel. width_step: what the width is to be a multiple of."""
    if width % width_step or depth % _DEPTH_STEP or not width or not depth:
        raise ValueError(
            f"{rows} rows of {depth} to {width}: must be positive multiples of {_DEPTH_STEP} and {width_step}"
        )


def packed_scales(x: Int8Rows, weight: Int8Rows, rows: int, width: int, depth: int) -> bytes:
    """The struct Scales of int8_product.cu, of operands of these sizes. Raises as `pointer`."""
    pointer("x", x.integers, torch.int8, (rows, depth))
    pointer("weight", weight.integers, torch.int8, (width, depth))
    return _SCALES.pack(
        pointer("x.scales", x.scales, torch.float32, (rows,)),
        pointer("weight.scales", weight.scales, torch.float32, (width,)),
    )
