"""Launch of pooling: one vector a sequence."""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import MAX_HIDDEN, VECTOR, kernel, pointer

KINDS = ("cls", "mean", "max", "last")
L2_EPS = 1e-12  # torch.nn.functional.normalize's
_WARP, _THREADS, _MAX_ACROSS = 32, 512, 128


def pool(out: Tensor, hidden: Tensor, cu_seqlens: Tensor, kind: str, normalize: bool, *, left_out: int = 0) -> None:
    """out[i] = pooled rows cu_seqlens[i] to cu_seqlens[i + 1] of `hidden`, then L2-normalised if asked.

    left_out: first rows of each sequence that are left out; its last one stays.

    out float32 [N, H]; hidden [R, H], float16 or bfloat16, H a multiple of 8 up to 8,192; cu_seqlens int32 [N + 1], on
    the device, last at most R. kind: one of KINDS. An empty sequence gives zeros. Sums are float32, in an order that
    depends on the sequence's length and H alone. One launch. Raises ValueError for anything else.
    """
    if kind not in KINDS:
        raise ValueError(f"pooling {kind!r} is not one of {', '.join(KINDS)}")
    count, width = out.shape
    if width % VECTOR or not 0 < width <= MAX_HIDDEN:
        raise ValueError(f"hidden size {width}: must be a positive multiple of {VECTOR}, at most {MAX_HIDDEN}")
    across = min(_MAX_ACROSS, -(-width // (VECTOR * _WARP)) * _WARP)
    down = _THREADS // across
    args = (
        pointer("out", out, torch.float32, (count, width)),
        pointer("hidden", hidden, hidden.dtype, (len(hidden), width)),
        pointer("cu_seqlens", cu_seqlens, torch.int32, (count + 1,)),
        np.int32(width),
        np.int32(left_out),
        np.int32(normalize),
        np.float32(L2_EPS),
    )
    if count:
        shared_bytes = 4 * (VECTOR * across * down + width)  # 16 KiB of partial sums, and one row
        kernel("pool", f"pool_{kind}", hidden)((count,), (across, down), args, shared_bytes)
