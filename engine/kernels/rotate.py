"""Launch of rotary positions, and of the norms of heads before them."""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import kernel, packed_norm, pointer
from penstock.engine.model.weights import Heads, RotaryAttention

_STEP, _MOST = 16, 256  # sizes of heads
_LANES = (2, 4, 8, 16)  # of a head, each with _STEP of its elements
_WARP, _ROWS_PER_BLOCK = 32, 4


def supports(head_dim: int) -> bool:
    """Whether `rotate` supports heads of `head_dim` elements."""
    return head_dim % _STEP == 0 and head_dim <= _MOST


def rotate(qkv: Tensor, positions: Tensor, heads: Heads, rotary: RotaryAttention) -> None:
    """Normalise the heads of queries and keys, where there are norms, and turn them by their rows' angles. In place.

    qkv [R, (queries + 2 keys) * dim], float16 or bfloat16; positions int32 [R], each with a row in `rotary`'s angles,
    which are float32. The norms are RMSNorms of qkv's type, for both or for neither. One launch, rounded once.
    Raises ValueError for other sizes, types or alignment.
    """
    rows, dtype, dim = len(qkv), qkv.dtype, heads.dim
    norms = rotary.query_norm, rotary.key_norm
    if not supports(dim):
        raise ValueError(f"heads of {dim}: must be a multiple of {_STEP}, at most {_MOST}")
    if (norms[0] is None) != (norms[1] is None) or any(
        norm.subtracts_mean or norm.bias is not None for norm in norms if norm
    ):
        raise ValueError("norms of heads are RMSNorms, of queries and keys or of neither")
    args = (
        pointer("qkv", qkv, dtype, (rows, heads.width + 2 * heads.key_width)),
        pointer("positions", positions, torch.int32, (rows,)),
        *(pointer("angles", one, torch.float32, (len(one), dim // 2)) for one in (rotary.cosines, rotary.sines)),
        *(packed_norm(norm, dtype, dim) for norm in norms),
        *map(np.int32, (rows, heads.queries, heads.keys, dim)),
    )
    if rows:
        lanes = next(lanes for lanes in _LANES if lanes * _STEP >= dim)
        grid, block = (-(-rows // _ROWS_PER_BLOCK),), (_WARP * _ROWS_PER_BLOCK,)
        kernel("rotate", f"rotate_{lanes}", qkv)(grid, block, args)
