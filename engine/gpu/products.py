"""Which products of a forward are ours, and not cuBLAS's: those of few rows. The crossovers were measured on an H200.

Microseconds a product in a CUDA graph of twelve, float16, BERT-base, weights from beyond the L2 cache: cuBLAS and a
launch for what follows it, and ours.

    rows                            32           64           128          256
    to 2,304, bias                  4.3   3.6    4.4   4.5    4.7   5.6    5.0   8.2
    to 3,072, bias and GELU         6.3   3.8    6.5   4.5    6.8   6.3    7.0   7.8
    from 768, residual and norm     6.2   3.5    6.3   4.3    6.4   4.9    6.6   5.9
    from 3,072, residual and norm   9.4   5.9    9.5   6.7    9.8   8.1   10.8  10.3

A row's bytes are read anew by every block that computes columns of it, so that larger products are cuBLAS's.
"""

from typing import NamedTuple

from penstock.engine.kernels.short_product import STAGE_DEPTH, Tile

MAX_ROWS = 256
_PLAIN_PRODUCTS = 1.2e8  # multiplications, up to which a product is ours where cuBLAS needs no launch after it
_ACTIVATED_PRODUCTS = 3.1e8
_SPLIT_PRODUCTS = 6.1e8
_MAX_SPLITS = 6
_BLOCKS = 200  # that run at a time, at one or two a multiprocessor


class Split(NamedTuple):
    """How the depth of a product is shared out."""

    tile: Tile
    num_parts: int


def product_tile(rows: int, width: int, depth: int, *, activated: bool) -> Tile | None:
    """For act(x w' + bias), w [width, depth]; None: take cuBLAS. activated: whether there is an activation."""
    if rows > MAX_ROWS or rows * width * depth > (_ACTIVATED_PRODUCTS if activated else _PLAIN_PRODUCTS):
        return None
    return Tile(32, 32) if rows <= 96 else Tile(64, 32)


def product_split(rows: int, width: int, depth: int) -> Split | None:
    """For x w' before a norm, which adds the parts up; None: take cuBLAS."""
    if rows > MAX_ROWS or rows * width * depth > _SPLIT_PRODUCTS:
        return None
    tile = Tile(32, 32) if rows <= 32 or depth <= 1024 else Tile(64, 64)
    blocks = -(-rows // tile.rows) * -(-width // tile.columns)
    return Split(tile, max(1, min(_MAX_SPLITS, _BLOCKS // blocks, -(-depth // STAGE_DEPTH))))


def most_parts(width: int) -> int:
    """Values of float32 that the parts of any product to `width` have room in."""
    return max(MAX_ROWS * width, _BLOCKS * 64 * 64)
