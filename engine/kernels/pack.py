"""Between padded rows with a mask and packed ones: the launches."""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import kernel, pointer

MAX_ROWS = 65_536
_INTEGERS = {torch.int32: "int32", torch.int64: "int64"}
_VECTOR, _TILE, _THREADS, _COUNT_ROWS, _COUNT_THREADS, _SCAN_THREADS = 8, 64, 256, 4, 128, 1024  # as in pack.cu
_ANY_SCALAR = torch.float16  # for entry points that handle integers only


def prefix_sum(cu_seqlens: Tensor, mask: Tensor) -> None:
    """cu_seqlens[i + 1] = tokens in the first i + 1 rows of the mask, cu_seqlens[0] = 0.

    cu_seqlens int32 [B + 1]; mask int32 or int64 [B, S], nonzero for tokens, B at most 65,536, on the device. Two
    launches. Raises ValueError for anything else.
    """
    rows, positions = mask.shape
    if not 1 <= rows <= MAX_ROWS:
        raise ValueError(f"{rows} rows: must be 1 to {MAX_ROWS}")
    address = pointer("cu_seqlens", cu_seqlens, torch.int32, (rows + 1,))
    args = (address, pointer("mask", mask, mask.dtype, (rows, positions)), np.int32(rows), np.int32(positions))
    count = kernel("pack", f"count_tokens_{_integer(mask)}", _ANY_SCALAR)
    count((-(-rows // _COUNT_ROWS),), (_COUNT_THREADS,), args)
    kernel("pack", "prefix_sum", _ANY_SCALAR)((1,), (_SCAN_THREADS,), (address, np.int32(rows)))


def pack(packed: Tensor, padded: Tensor, cu_seqlens: Tensor, mask: Tensor) -> None:
    """The tokens of `padded`, in order and without padding.

    packed [T, H], padded [B, S, H]: float16 or bfloat16, H a multiple of 8, no aliasing; mask int32 or int64 [B, S],
    with T tokens (holes and padding anywhere), cu_seqlens its `prefix_sum`. One launch. Raises ValueError for anything
    else.
    """
    _copy("pack", packed, padded, packed, padded, cu_seqlens, mask)


def unpack(padded: Tensor, packed: Tensor, cu_seqlens: Tensor, mask: Tensor) -> None:
    """The reverse of `pack`; zeros where the mask is zero."""
    _copy("unpack", padded, packed, packed, padded, cu_seqlens, mask)


def pack_ids(packed: Tensor, ids: Tensor, cu_seqlens: Tensor, mask: Tensor) -> None:
    """As `pack`, for token ids: packed int32 [T], ids [B, S] of the mask's type."""
    rows, positions = mask.shape
    args = (
        pointer("packed", packed, torch.int32, (len(packed),)),
        pointer("ids", ids, mask.dtype, (rows, positions)),
        pointer("cu_seqlens", cu_seqlens, torch.int32, (rows + 1,)),
        pointer("mask", mask, mask.dtype, (rows, positions)),
        np.int32(positions),
    )
    grid = (rows, -(-positions // _TILE))
    if rows and positions:
        kernel("pack", f"pack_ids_{_integer(mask)}", _ANY_SCALAR)(grid, (_THREADS,), args)


def _copy(
    entry: str, to: Tensor, source: Tensor, packed: Tensor, padded: Tensor, cu_seqlens: Tensor, mask: Tensor
) -> None:
    rows, positions = mask.shape
    tokens, width = packed.shape
    if width <= 0 or width % _VECTOR:
        raise ValueError(f"hidden size {width}: must be a positive multiple of {_VECTOR}")
    pointer("packed", packed, packed.dtype, (tokens, width))
    pointer("padded", padded, packed.dtype, (rows, positions, width))
    args = (
        to.data_ptr(),
        source.data_ptr(),
        pointer("cu_seqlens", cu_seqlens, torch.int32, (rows + 1,)),
        pointer("mask", mask, mask.dtype, (rows, positions)),
        np.int32(positions),
        np.int32(width),
    )
    grid = (rows, -(-positions // _TILE))
    if rows and positions:
        kernel("pack", f"{entry}_{_integer(mask)}", packed.dtype)(grid, (_THREADS,), args)


def _integer(mask: Tensor) -> str:
    if mask.dtype not in _INTEGERS:
        raise ValueError(f"mask must be int32 or int64, not {mask.dtype}")
    return _INTEGERS[mask.dtype]
