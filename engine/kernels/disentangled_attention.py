"""Launch of DeBERTa-v2/v3's disentangled attention."""

import math

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import head_dim_of, kernel, pointer, pointer_or_null

_HEAD_DIMS = (32, 64)
_THREADS, _QUERIES, _KEYS, _RING, _UNUSED = 128, 64, 32, 128, 8  # as in disentangled_attention.cu
_MAX_SEQUENCES = 65_535  # of a grid's third dimension


def supports(head_dim: int) -> bool:
    """Whether `disentangled_attention` supports heads of `head_dim` elements."""
    return head_dim in _HEAD_DIMS


def disentangled_attention(
    out: Tensor,
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    num_heads: int,
    kr: Tensor | None,
    qr: Tensor | None,
    table: Tensor,
    scale: float,
) -> None:
    """softmax(scale (q_i k_j + q_i kr_c + k_j qr_c)) v with c = table(i - j), within each sequence, into `out`.

    out [R, H] and qkv [R, 3H] (query, key, value; each [num_heads, head_dim]), float16 or bfloat16, no aliasing.
    cu_seqlens int32 [N+1] on the device, last at most R; empty sequences are skipped; rows in no sequence are neither
    read nor written. max_seqlen: at least the tokens of the longest sequence. The grid depends on it and on N.
    kr, qr [2 * span, H], of the same type: the layer's projected relative embeddings, kr by its key projection ("c2p"),
    qr by its query projection ("p2c"); one may be None.
    table int32 [2 * reach - 1] on the device, reach >= max_seqlen: `penstock.engine.model.positions.relative_rows`.
    scale > 0: 1 / sqrt(head_dim * (1 + number of kr and qr)). A row's result depends on its own sequence alone.
    One launch, nothing allocated. Raises ValueError for other shapes, types or alignment.
    """
    rows, hidden = out.shape
    head_dim = head_dim_of(hidden, num_heads, _HEAD_DIMS)
    sequences, reach = len(cu_seqlens) - 1, (len(table) + 1) // 2
    relative = [tensor for tensor in (kr, qr) if tensor is not None]
    if not relative:
        raise ValueError("kr and qr are both None: that is plain attention")
    if not 1 <= max_seqlen <= reach:
        raise ValueError(f"max_seqlen {max_seqlen}: a table of {len(table)} distances reaches 1 to {reach} tokens")
    if sequences > _MAX_SEQUENCES or not scale > 0:
        raise ValueError(f"{sequences} sequences, scale {scale}: at most {_MAX_SEQUENCES}, and positive")
    embeddings = (len(relative[0]), hidden)
    arguments = (
        pointer("out", out, out.dtype, (rows, hidden)),
        pointer("qkv", qkv, out.dtype, (rows, 3 * hidden)),
        pointer("cu_seqlens", cu_seqlens, torch.int32, (sequences + 1,)),
        pointer_or_null("kr", kr, out.dtype, embeddings),
        pointer_or_null("qr", qr, out.dtype, embeddings),
        pointer("table", table, torch.int32, (2 * reach - 1,)),
        np.int32(reach),
        np.float32(scale * math.log2(math.e)),
    )
    if sequences == 0:
        return
    terms = "c2p_p2c" if len(relative) == 2 else "c2p" if qr is None else "p2c"
    staged_rows = 4 * _KEYS + _RING * len(relative)  # keys and values twice, and the distances of kr and qr
    shared_bytes = (staged_rows * head_dim + _UNUSED * (2 - len(relative))) * out.element_size()
    entry = kernel("disentangled_attention", f"disentangled_attention_{terms}_{head_dim}", out)
    entry((-(-max_seqlen // _QUERIES), num_heads, sequences), (_THREADS,), arguments, shared_bytes)
