"""Launches of two products of eight-bit integers, the first of which gives the rows of the second: on Hopper."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.hopper import hopper_kernel, tensor_map
from penstock.engine.kernels.int8_product import require_sizes
from penstock.engine.kernels.int8_rows import ROTATED, Int8Rows
from penstock.engine.kernels.library import index_of, pointer, pointer_or_null
from penstock.engine.kernels.wide_product import activated
from penstock.engine.kernels.wide_tile import BLOCK_ROWS, OUT_ROWS, ROW_BYTES, SHARED_BYTES, THREADS, W_ROWS, num_blocks


@dataclass(frozen=True, slots=True)
class Int8Blocks:
    """Rows in eight-bit integers with a scale for each 128 columns, on the device, in the order of `block_order`."""

    integers: Tensor  # int8 [R, K]
    scales: Tensor  # float32 [K / 128, R]


def block_order() -> Tensor:
    """[128]: the place in a rotated block of each of its columns in `Int8Blocks`, as a thread of a product has them."""
    places = torch.arange(ROTATED)
    sixteen, quad, pair, one = places // 16, places // 4 % 4, places // 2 % 2, places % 2
    return 16 * sixteen + 8 * pair + 2 * quad + one


def block_columns(scales: Tensor, bias: Tensor | None, factors: Tensor) -> Tensor:
    """The columns of `product_to_blocks` [N, 2]: scales of weights float32 [N], bias and factors [N] in 16 bits."""
    shift = torch.zeros_like(factors) if bias is None else bias
    halves = torch.stack((shift, factors), dim=1).view(torch.int32)
    return torch.cat((scales[:, None].view(torch.int32), halves), dim=1)


def product_to_blocks(
    out: Int8Blocks, x: Int8Rows, weight: Tensor, columns: Tensor, kind: str, dtype: torch.dtype
) -> None:
    """out = act(x weight' * their scales + bias) * factors, rotated in blocks of 128 and rounded, each with its scale.

    out [R, N], x [R, K], weight int8 [N, K], columns as `block_columns` makes them of `dtype`. N is a multiple of 128,
    and K of 16. "gelu" is within 5e-4 |x|. No aliasing. One launch, on compute capability 9.0. Raises ValueError,
    UnsupportedDevice.
    """
    (rows, width), depth = out.integers.shape, x.integers.shape[1]
    require_sizes(rows, width, depth, ROTATED)
    pointer("out", out.integers, torch.int8, (rows, width))
    pointer("x", x.integers, torch.int8, (rows, depth))
    pointer("weight", weight, torch.int8, (width, depth))
    of_blocks = pointer("out.scales", out.scales, torch.float32, (width // ROTATED, rows))
    of_rows = pointer("x.scales", x.scales, torch.float32, (rows,))
    of_columns = pointer("columns", columns, torch.int32, (width, 2))
    device = index_of(columns)
    epilogue = "GeluNear" if kind == "gelu" else activated(kind)
    run = hopper_kernel("int8_to_blocks", "int8_to_blocks", dtype, epilogue, device)
    if not rows:
        return
    args = (
        tensor_map(out.integers, OUT_ROWS, ROW_BYTES),
        tensor_map(x.integers, BLOCK_ROWS, ROW_BYTES),
        tensor_map(weight, W_ROWS, ROW_BYTES),
        of_blocks,
        of_rows,
        of_columns,
        np.int32(rows),
        np.int32(width),
        np.int32(depth),
    )
    run((num_blocks(rows, width, device),), (THREADS,), args, SHARED_BYTES)


def product_of_blocks(out: Tensor, x: Int8Blocks, weight: Int8Rows, bias: Tensor | None) -> None:
    """out = x weight' * their scales + bias: out [R, N], x [R, K], weight [N, K] in the order of `block_order`.

    N is a multiple of 8, K of 128; otherwise as `int8_product`, whose sums within a block are exact, and whose sums of
    blocks are float32, in order.
    """
    (rows, width), depth = out.shape, x.integers.shape[1]
    require_sizes(rows, width, depth, 8)
    if depth % ROTATED:
        raise ValueError(f"{depth} columns are no multiple of {ROTATED}")
    pointer("out", out, out.dtype, (rows, width))
    pointer("x", x.integers, torch.int8, (rows, depth))
    pointer("weight", weight.integers, torch.int8, (width, depth))
    of_blocks = pointer("x.scales", x.scales, torch.float32, (depth // ROTATED, rows))
    scales = pointer("weight.scales", weight.scales, torch.float32, (width,))
    shift = pointer_or_null("bias", bias, out.dtype, (width,))
    device = index_of(out)
    run = hopper_kernel("int8_blocks", "int8_blocks", out.dtype, None, device)
    if not rows:
        return
    args = (
        tensor_map(out, OUT_ROWS, ROW_BYTES // out.element_size()),
        tensor_map(x.integers, BLOCK_ROWS, ROW_BYTES),
        tensor_map(weight.integers, W_ROWS, ROW_BYTES),
        of_blocks,
        scales,
        shift,
        np.int32(rows),
        np.int32(width),
        np.int32(depth),
    )
    run((num_blocks(rows, width, device),), (THREADS,), args, SHARED_BYTES)
