"""Launches of products of few rows: with bias and activation, or in parts for a fused norm."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.activation import KINDS
from penstock.engine.kernels.library import VECTOR, kernel, pointer, pointer_or_null

STAGE_DEPTH = 128  # as in short_product.cu
_MAX_GRID = 65_535  # of a grid's second and third dimension


class Tile(NamedTuple):
    """The part of the result that a block computes."""

    rows: int
    columns: int


class _Ring(NamedTuple):
    threads: int
    stages: int


# As the entries of short_product.cu.
_RINGS = {Tile(32, 32): _Ring(256, 4), Tile(64, 32): _Ring(256, 3), Tile(64, 64): _Ring(256, 3)}
TILES = tuple(_RINGS)


def short_product(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, kind: str, tile: Tile) -> None:
    """out = act(x weight' + bias): out [R, N], x [R, K], weight [N, K], bias [N], all float16 or all bfloat16.

    kind: one of activation.KINDS. N and K are multiples of 8; no aliasing. One launch. Raises ValueError for anything
    else.
    """
    (rows, width), dtype = out.shape, out.dtype
    destination = pointer("out", out, dtype, (rows, width))
    shift = pointer_or_null("bias", bias, dtype, (width,))
    _launch(destination, 0, shift, kind, x, weight, tile, 1)


def split_product(parts: Tensor, x: Tensor, weight: Tensor, tile: Tile) -> None:
    """Split-K product: parts whose sum is x weight', each of a slice of the depth; `split_norm` adds them.

    parts float32 [S, R, N], x [R, K], weight [N, K], both float16 or both bfloat16; S at most K / 128, rounded up.
    One launch. Raises ValueError for anything else.
    """
    splits, rows, width = parts.shape
    if not 1 <= splits <= -(-x.shape[1] // STAGE_DEPTH):
        raise ValueError(f"a depth of {x.shape[1]} is not cut into {splits} parts of {STAGE_DEPTH} or more")
    destination = pointer("parts", parts, torch.float32, (splits, rows, width))
    _launch(0, destination, 0, "identity", x, weight, tile, splits)


def _launch(out: int, parts: int, bias: int, kind: str, x: Tensor, weight: Tensor, tile: Tile, splits: int) -> None:
    (rows, depth), width, dtype = x.shape, weight.shape[0], x.dtype
    grid = (-(-width // tile.columns), -(-rows // tile.rows), splits)
    if kind not in KINDS or tile not in _RINGS:
        raise ValueError(f"activation {kind!r} is not one of {', '.join(KINDS)}, or there are no tiles of {tile}")
    if width % VECTOR or depth % VECTOR or not width or not depth or grid[1] > _MAX_GRID:
        raise ValueError(f"{rows} rows of {depth} to {width}: widths must be positive multiples of {VECTOR}")
    ring = _RINGS[tile]
    stages = -(-depth // STAGE_DEPTH)
    args = (
        out,
        parts,
        pointer("x", x, dtype, (rows, depth)),
        pointer("weight", weight, dtype, (width, depth)),
        bias,
        np.int32(rows),
        np.int32(width),
        np.int32(depth),
        np.int32(-(-stages // splits) * STAGE_DEPTH),
        np.int32(KINDS.index(kind)),
    )
    shared_bytes = ring.stages * sum(tile) * STAGE_DEPTH * dtype.itemsize
    if rows:
        name = f"short_product_{tile.rows}x{tile.columns}"
        kernel("short_product", name, x)(grid, (ring.threads,), args, shared_bytes)
