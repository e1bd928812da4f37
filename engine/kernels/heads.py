"""The ends of classifier and pooler heads: the launches."""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import kernel, pointer

SCORES = ("softmax", "sigmoid", "raw")
_VECTOR, _THREADS, _ROWS_PER_BLOCK = 8, 128, 4
_MAX_GRID = 8192


def gather_rows(out: Tensor, hidden: Tensor, cu_seqlens: Tensor, which: str) -> None:
    """out[i] = the first ("cls") or "last" row of sequence i; zeros for an empty sequence.

    out [N, H], hidden [R, H]: float16 or bfloat16, H a multiple of 8; cu_seqlens int32 [N + 1], on the device, last at
    most R. No aliasing. One launch. Raises ValueError for anything else.
    """
    if which not in ("cls", "last"):
        raise ValueError(f"row {which!r} is not cls or last")
    count, width = out.shape
    if width <= 0 or width % _VECTOR:
        raise ValueError(f"hidden size {width}: must be a positive multiple of {_VECTOR}")
    args = (
        pointer("out", out, hidden.dtype, (count, width)),
        pointer("hidden", hidden, hidden.dtype, (len(hidden), width)),
        pointer("cu_seqlens", cu_seqlens, torch.int32, (count + 1,)),
        np.int32(count),
        np.int32(width),
        np.int32(which == "last"),
    )
    if count:
        kernel("heads", "gather_rows", hidden.dtype)((-(-count // _ROWS_PER_BLOCK),), (_THREADS,), args)


def softmax_rows(out: Tensor, logits: Tensor, kind: str) -> None:
    """Scores of each row: the softmax, the sigmoid of each logit, or the logits themselves ("raw"), as float32.

    out float32 [N, C], logits [N, C], float16 or bfloat16, any C >= 1. One launch. Raises ValueError for anything else.
    """
    if kind not in SCORES:
        raise ValueError(f"scores {kind!r} are not one of {', '.join(SCORES)}")
    count, classes = out.shape
    args = (
        pointer("out", out, torch.float32, (count, classes)),
        pointer("logits", logits, logits.dtype, (count, classes)),
        np.int32(count),
        np.int32(classes),
    )
    if count == 0:
        return
    blocks = -(-count // _ROWS_PER_BLOCK) if kind == "softmax" else min(_MAX_GRID, -(-count * classes // _THREADS))
    kernel("heads", f"scores_{kind}", logits.dtype)((blocks,), (_THREADS,), args)
