"""Launches of products of up to 1,024 rows on Hopper: with bias and activation, or in parts for a fused norm."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.epilogues import NOT_TURNED, activated, packed_rotary
from penstock.engine.kernels.hopper import hopper_kernel, tensor_map
from penstock.engine.kernels.library import VECTOR, Kernel, index_of, pointer, pointer_or_null
from penstock.engine.model.weights import Heads, RotaryAttention

# As in mid_product.cu.
COLUMNS, STAGE_DEPTH = 96, 64
_ROW_BYTES, _WARP, _GROUP_THREADS, _GROUP_ROWS = 128, 32, 128, 64
_PLAIN = "Identity"


class MidTile(NamedTuple):
    """The part of the result that a block computes, of COLUMNS columns: as the entries of mid_product.cu."""

    groups: int  # of 64 rows
    stages: int

    @property
    def rows(self) -> int:
        """Rows of the tile."""
        return _GROUP_ROWS * self.groups

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        stage = (self.rows + COLUMNS) * _ROW_BYTES + 2 * 8  # and its barriers
        return 1024 + self.stages * stage + 2 * COLUMNS  # the ring begins on a boundary of 1,024; the bias

    def num_tiles(self, rows: int, width: int) -> int:
        """Tiles of a product."""
        return -(-rows // self.rows) * -(-width // COLUMNS)


TILES = (MidTile(1, 10), MidTile(2, 4), MidTile(3, 5), MidTile(4, 5))  # by rows


def mid_product(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    kind: str,
    tile: MidTile,
    *,
    is_gated: bool = False,
    lets_next_late: bool = False,
) -> None:
    """out = act(x weight' + bias): out [R, N], x [R, K], weight [N, K], bias [N], all float16 or all bfloat16.

    is_gated: weight and bias have 2N rows, and out = act(first N columns) * last N columns, as in GeGLU.
    kind: one of activation.KINDS. tile: one of TILES. lets_next_late: whether the next kernel may start once the sums
    are ready, and no earlier. N and K are multiples of 8; no aliasing. One launch, on compute capability 9.0. Raises
    ValueError for anything else, UnsupportedDevice elsewhere.
    """
    columns = 2 * out.shape[1] if is_gated else out.shape[1]
    epilogue = activated(kind, is_gated=is_gated), NOT_TURNED
    _launch_whole(out, x, weight, bias, columns, epilogue, tile, lets_next_late)


def mid_turned(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    positions: Tensor,
    heads: Heads,
    rotary: RotaryAttention,
    tile: MidTile,
) -> None:
    """As `mid_product` without an activation, with the next kernel late, and then `rotate`; rounded once, after both.

    positions int32 [R], each with a row in `rotary`'s angles. Raises ValueError for heads without an epilogue too.
    """
    epilogue = packed_rotary(out, positions, heads, rotary)
    _launch_whole(out, x, weight, bias, out.shape[1], epilogue, tile, lets_next_late=True)


def mid_parts(parts: Tensor, x: Tensor, weight: Tensor, tile: MidTile) -> None:
    """Split-K product: parts whose sum is x weight', each of a slice of the depth; `split_norm` adds them.

    parts float32 [S, R, N], x [R, K], weight [N, K], both float16 or both bfloat16; S of which none is empty, of slices
    of equal multiples of STAGE_DEPTH. One launch, on compute capability 9.0. Raises as `mid_product` does.
    """
    splits = len(parts)
    to = pointer("parts", parts, torch.float32, (splits, len(x), len(weight)))
    _launch((0, to, 0, NOT_TURNED), _PLAIN, x, weight, len(weight), tile, splits, lets_next_late=False)


def prepare(epilogues: set[str], dtype: torch.dtype, device: int) -> None:
    """Compile and load for CUDA device `device`, with each of these epilogues and without. Raises UnsupportedDevice
    where `mid_product` does not run."""
    for epilogue in epilogues | {_PLAIN}:
        for tile in TILES:
            _kernel(epilogue, dtype, tile, device)


def _kernel(epilogue: str, dtype: torch.dtype, tile: MidTile, device: int) -> Kernel:
    return hopper_kernel("mid_product", f"mid_product_{tile.groups}", dtype, epilogue, device)


def _launch_whole(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    columns: int,
    epilogue: tuple[str, bytes],
    tile: MidTile,
    lets_next_late: bool,
) -> None:
    """A product in one part. columns: of the product, and rows of weight. epilogue: and the kernel's struct for it."""
    width, dtype, (name, rotary) = out.shape[1], out.dtype, epilogue
    to, shift = pointer("out", out, dtype, (len(x), width)), pointer_or_null("bias", bias, dtype, (columns,))
    if columns != len(weight):
        raise ValueError(f"a product of {columns} columns, and weight has {len(weight)} rows")
    _launch((to, 0, shift, rotary), name, x, weight, width, tile, 1, lets_next_late)


def _launch(
    operands: tuple[int, int, int, bytes],
    epilogue: str,
    x: Tensor,
    weight: Tensor,
    width: int,
    tile: MidTile,
    splits: int,
    lets_next_late: bool,
) -> None:
    """operands: out or parts, bias and rotary positions, as the kernel takes them. width: of out or parts."""
    (rows, depth), columns, dtype = x.shape, weight.shape[0], x.dtype
    if width % VECTOR or depth % VECTOR or not width or not depth:
        raise ValueError(f"{rows} rows of {depth} to {width}: widths must be positive multiples of {VECTOR}")
    if tile not in TILES:
        raise ValueError(f"{tile} is not one of {TILES}")
    pointer("x", x, dtype, (rows, depth))
    pointer("weight", weight, dtype, (columns, depth))
    stages = -(-depth // STAGE_DEPTH)
    of_part = -(-stages // max(splits, 1))
    if of_part * (splits - 1) >= stages or not splits:
        raise ValueError(f"a depth of {depth} is not cut into {splits} parts of {of_part * STAGE_DEPTH}")
    run = _kernel(epilogue, dtype, tile, index_of(x))
    if not rows:
        return
    args = (
        tensor_map(x, tile.rows, STAGE_DEPTH),
        tensor_map(weight, _box_rows(epilogue), STAGE_DEPTH),
        *operands,
        *map(np.int32, (rows, width, stages, of_part, lets_next_late)),
    )
    grid = -(-columns // COLUMNS), -(-rows // tile.rows), splits
    run(grid, (tile.groups * _GROUP_THREADS + _WARP,), args, tile.shared_bytes)


def _box_rows(epilogue: str) -> int:
    """Rows of w that are loaded together: as BOX_ROWS in mid_product.cu."""
    if epilogue.startswith("Turned"):
        return 16
    return COLUMNS // 2 if epilogue.startswith("Gated") else COLUMNS
