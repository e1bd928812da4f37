"""Geometry of persistent products of many rows on Hopper: tiles, and a launch's grid."""

import torch

from penstock.engine.kernels.hopper import CAPABILITY
from penstock.engine.kernels.library import multiprocessors

# As in wide_tile.cuh.
THREADS = 384
BLOCK_ROWS, BLOCK_COLUMNS = 128, 128
OUT_ROWS = 16
ROW_BYTES = 128
_CLUSTER, _STAGES = 2, 6
_WARPS, _OUT_BUFFERS = 8, 2
W_ROWS = BLOCK_COLUMNS // _CLUSTER  # of w's boxes
SHARED_BYTES = (
    1024  # the ring begins on such a boundary
    + _STAGES * (BLOCK_ROWS + BLOCK_COLUMNS) * ROW_BYTES
    + _WARPS * _OUT_BUFFERS * OUT_ROWS * ROW_BYTES
    + _STAGES * 2 * 8  # barriers
)


def num_groups(device: int) -> int:
    """Tiles that CUDA device `device` computes at a time; 0 where these products do not run."""
    if torch.cuda.get_device_capability(device) != CAPABILITY:
        return 0
    return 2 * (multiprocessors(device) // _CLUSTER)


def num_tiles(rows: int, width: int) -> int:
    """Tiles of a product. Two blocks compute each."""
    return -(-rows // (BLOCK_ROWS * _CLUSTER)) * -(-width // BLOCK_COLUMNS)


def num_blocks(rows: int, width: int, device: int) -> int:
    """Blocks of a launch on CUDA device `device`: as many as it holds, or two for each tile."""
    return _CLUSTER * min(multiprocessors(device) // _CLUSTER, num_tiles(rows, width))
