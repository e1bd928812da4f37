"""Launches of products of eight-bit integers on Hopper: to 16 bits, to eight bits again, and of such results."""

import struct
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.epilogues import activated
from penstock.engine.kernels.hopper import hopper_kernel, tensor_map
from penstock.engine.kernels.int8_rows import ROTATED, Int8Rows
from penstock.engine.kernels.library import VECTOR, index_of, pointer
from penstock.engine.kernels.wide_tile import BLOCK_ROWS, OUT_ROWS, ROW_BYTES, SHARED_BYTES, THREADS, W_ROWS, num_blocks

_SCALES = struct.Struct("PPP")
_DEPTH_STEP = 16  # bytes that the copy engine's rows are a multiple of


@dataclass(frozen=True, slots=True)
class Int8Matrix:
    """A weight [N, K] in eight-bit integers, on the device. N is a multiple of 8."""

    integers: Tensor  # int8 [N, K]
    columns: Tensor  # int32 [N / 2, 4], of pairs of outputs: scales in float32, biases and factors in float16

    @classmethod
    def of(cls, integers: Tensor, scales: Tensor, bias: Tensor | None) -> "Int8Matrix":
        """scales: float32 [N]. bias: [N], in any type."""
        shift = torch.zeros_like(scales) if bias is None else bias
        halves = torch.stack((shift.half(), torch.ones_like(scales).half())).view(torch.int32)
        return cls(integers, torch.cat((scales.view(torch.int32).view(-1, 2), halves.t()), dim=1))

    def feeding(self, factors: Tensor) -> "Int8Matrix":
        """The matrix whose results a product takes that multiplies them by `factors` [N] first."""
        last = factors.half().view(torch.int32)[:, None]
        return replace(self, columns=torch.cat((self.columns[:, :3], last), dim=1))


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


def int8_product(out: Tensor, x: Int8Rows, weight: Int8Matrix, kind: str) -> None:
    """out = act(x weight' * their scales + bias): out [R, N], x [R, K], weight [N, K].

    out float16 or bfloat16; kind: one of activation.KINDS. K is a multiple of 16. Sums are exact, so a row of `out`
    depends on its own row of `x` alone. No aliasing. One launch, on compute capability 9.0. Raises ValueError for
    anything else, UnsupportedDevice elsewhere.
    """
    scales = pointer("x.scales", x.scales, torch.float32, (len(out),))
    _launch("int8_product", activated(kind), out, x.integers, weight, (scales, 0))


def product_to_blocks(out: Int8Blocks, x: Int8Rows, weight: Int8Matrix, kind: str) -> None:
    """out = act(x weight' * their scales + bias) * factors, rotated in blocks of 128 and rounded, each with its scale.

    out [R, N], weight [N, K], whose N is a multiple of 128; otherwise as `int8_product`. Activations and factors are in
    half precision, and "gelu" is within 1e-3 |x|.
    """
    rows, width = out.integers.shape
    scales = pointer("x.scales", x.scales, torch.float32, (rows,))
    of_blocks = pointer("out.scales", out.scales, torch.float32, (width // ROTATED, rows))
    _launch("int8_product", f"Blocks<{activated(kind)}>", out.integers, x.integers, weight, (scales, of_blocks))


def product_of_blocks(out: Tensor, x: Int8Blocks, weight: Int8Matrix) -> None:
    """out = x weight' * their scales + bias: out [R, N], x [R, K], weight [N, K] in the order of `block_order`.

    K is a multiple of 128; otherwise as `int8_product`, whose sums within a block are exact, and whose sums of blocks
    are float32, in order.
    """
    rows, depth = x.integers.shape
    if depth % ROTATED:
        raise ValueError(f"{depth} columns are no multiple of {ROTATED}")
    scales = pointer("x.scales", x.scales, torch.float32, (depth // ROTATED, rows))
    _launch("int8_blocks", None, out, x.integers, weight, (scales, 0))


def _launch(
    source: str, epilogue: str | None, out: Tensor, x: Tensor, weight: Int8Matrix, scales: tuple[int, int]
) -> None:
    """scales: addresses of those of x and, for blocks, of out."""
    (rows, width), depth = out.shape, x.shape[1]
    width_step = ROTATED if out.dtype == torch.int8 else VECTOR
    if width % width_step or depth % _DEPTH_STEP or not width or not depth:
        raise ValueError(
            f"{rows} rows of {depth} to {width}: must be positive multiples of {_DEPTH_STEP} and {width_step}"
        )
    pointer("out", out, out.dtype, (rows, width))
    pointer("x", x, torch.int8, (rows, depth))
    pointer("weight", weight.integers, torch.int8, (width, depth))
    columns = pointer("columns", weight.columns, torch.int32, (width // 2, 4))
    device = index_of(out)
    dtype = torch.float16 if out.dtype == torch.int8 else out.dtype
    run = hopper_kernel(source, source, dtype, epilogue, device)
    if not rows:
        return
    args = (
        tensor_map(out, OUT_ROWS, ROW_BYTES // out.element_size()),
        tensor_map(x, BLOCK_ROWS, ROW_BYTES),
        tensor_map(weight.integers, W_ROWS, ROW_BYTES),
        _SCALES.pack(*scales, columns),
        np.int32(rows),
        np.int32(width),
        np.int32(depth),
    )
    run((num_blocks(rows, width, device),), (THREADS,), args, SHARED_BYTES)
