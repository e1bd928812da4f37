"""Disentangled attention of DeBERTa-v2/v3 on tensor cores: the launch."""

import math

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import kernel

_HEAD_DIMS = (32, 64)
_THREADS, _QUERIES, _KEYS, _RING = 128, 64, 32, 128  # as in disentangled_attention.cu
_MAX_SEQUENCES = 65_535  # of a grid's third dimension


def supports(head_dim: int) -> bool:
    """Whether `disentangled_attention` takes heads of `head_dim` elements."""
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
    cu_seqlens int32 [N+1] on the device, last at most R; empty sequences are passed over; rows in no sequence are
    neither read nor written. max_seqlen in tokens, at least the longest sequence: with N it decides the grid, so both
    may be a bucket's. kr, qr [2 * span, H], of the same type: the layer's projected relative embeddings, kr by its key
    projection ("c2p"), qr by its query projection ("p2c"); one may be None.
    table int32 [2 * reach - 1] on the device, reach >= max_seqlen: `penstock.engine.relative.relative_rows`.
    scale > 0: 1 / sqrt(head_dim * (1 + number of kr and qr)). A row's result depends on its own sequence alone.
    One launch, nothing allocated. Raises ValueError when shapes, types or alignment are other than that.
    """
    relative = [tensor for tensor in (kr, qr) if tensor is not None]
    _check(out, qkv, cu_seqlens, max_seqlen, num_heads, relative, table)
    if not scale > 0:
        raise ValueError(f"scale must be positive, not {scale}")
    head_dim, sequences, reach = out.shape[1] // num_heads, len(cu_seqlens) - 1, (len(table) + 1) // 2
    if sequences == 0:
        return
    terms = "c2p_p2c" if len(relative) == 2 else "c2p" if qr is None else "p2c"
    arguments = (
        out.data_ptr(),
        qkv.data_ptr(),
        cu_seqlens.data_ptr(),
        0 if kr is None else kr.data_ptr(),
        0 if qr is None else qr.data_ptr(),
        table.data_ptr(),
        np.int32(reach),
        np.float32(scale * math.log2(math.e)),
    )
    grid = (-(-max_seqlen // _QUERIES), num_heads, sequences)
    staged_rows = 4 * _KEYS + _RING * len(relative)  # keys and values twice, and the distances
    shared_bytes = (staged_rows * head_dim + 8 * (2 - len(relative))) * out.element_size()
    kernel("disentangled_attention", f"disentangled_attention_{terms}_{head_dim}", out.dtype)(
        grid, (_THREADS,), arguments, shared_bytes
    )


def _check(
    out: Tensor,
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    num_heads: int,
    relative: list[Tensor],
    table: Tensor,
) -> None:
    rows, hidden = out.shape
    head_dim = hidden // num_heads
    if head_dim not in _HEAD_DIMS or head_dim * num_heads != hidden:
        raise ValueError(f"{num_heads} heads of {hidden / num_heads:g}: a head must have one of {_HEAD_DIMS} elements")
    if not relative:
        raise ValueError("kr and qr are both None: that is plain attention")
    if qkv.shape != (rows, 3 * hidden):
        raise ValueError(f"qkv must be {(rows, 3 * hidden)}, not {tuple(qkv.shape)}")
    if any(tensor.dim() != 2 or tensor.shape != (len(relative[0]), hidden) for tensor in relative):
        raise ValueError(f"kr and qr must be [2 * span, {hidden}], not {[tuple(t.shape) for t in relative]}")
    if any(tensor.dtype != out.dtype for tensor in (qkv, *relative)):
        raise ValueError(f"qkv, kr and qr must be {out.dtype}, not {[t.dtype for t in (qkv, *relative)]}")
    if any(tensor.dtype != torch.int32 or tensor.dim() != 1 for tensor in (cu_seqlens, table)):
        raise ValueError("cu_seqlens and table must be int32 of one dimension")
    sequences, reach = len(cu_seqlens) - 1, (len(table) + 1) // 2
    if len(table) % 2 == 0 or not 1 <= max_seqlen <= reach or not 0 <= sequences <= _MAX_SEQUENCES:
        raise ValueError(
            f"{sequences} sequences of at most {max_seqlen} tokens: a table of {len(table)} rows serves at most "
            f"{_MAX_SEQUENCES} of {reach}"
        )
    if any(tensor.data_ptr() % 16 or not tensor.is_contiguous() for tensor in (out, qkv, *relative)):
        raise ValueError("out, qkv, kr and qr must be contiguous and aligned to 16 bytes")
