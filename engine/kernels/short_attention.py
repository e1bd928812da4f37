"""Launch of attention over short packed sequences, and the plan that gives each warp its queries."""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.engine.kernels.library import head_dim_of, kernel, pointer, pointer_or_null
from penstock.engine.types import Int32Array

MAX_SEQLEN = 128
_HEAD_DIMS = (32, 64, 128)
_WARP = 32
_TILE = 16  # queries of a warp, as in short_attention.cu
_WARPS = 8  # of a CTA, as in short_attention.cu: with eight, the longest sequence fits into one
_MAX_CTAS = 65_535  # of a grid's second dimension


def supports(head_dim: int, max_seqlen: int) -> bool:
    """Whether `short_attention` supports sequences of up to `max_seqlen` tokens and heads of `head_dim` elements."""
    return head_dim in _HEAD_DIMS and max_seqlen <= MAX_SEQLEN


def short_attention(
    out: Tensor, qkv: Tensor, plan: Tensor, num_heads: int, scale: float, bias: Tensor | None = None
) -> None:
    """softmax(scale q k' + bias) v within each sequence of the plan, into `out`. One launch, nothing allocated.

    out [R, H] and qkv [R, 3H] (query, key, value; each [num_heads, head_dim]), float16 or bfloat16, no aliasing. Rows
    in no sequence of the plan are neither read nor written. plan [C, 2] int32 on the device: `plan_items`. scale > 0.
    bias: `packed_attention.distance_table` for this scale, and "+ bias" is that of the distance of query and key.
    Raises ValueError for other shapes, types or alignment.
    """
    (rows, hidden), dtype, items = out.shape, out.dtype, len(plan)
    head_dim = head_dim_of(hidden, num_heads, _HEAD_DIMS)
    if items % _WARPS or items > _WARPS * _MAX_CTAS or plan.data_ptr() % 8:
        raise ValueError(
            f"plan must have a multiple of {_WARPS} and at most {_WARPS * _MAX_CTAS} rows, not {items}, "
            "and begin on an 8-byte boundary"
        )
    if not scale > 0:
        raise ValueError(f"scale must be positive, not {scale}")
    reach = MAX_SEQLEN if bias is None else bias.shape[-1] // 2
    if reach < MAX_SEQLEN:
        raise ValueError(f"bias must reach {MAX_SEQLEN} tokens, not {reach}")
    args = (
        pointer("out", out, dtype, (rows, hidden)),
        pointer("qkv", qkv, dtype, (rows, 3 * hidden)),
        pointer("plan", plan, torch.int32, (items, 2)),
        np.float32(scale),
        pointer_or_null("bias", bias, torch.float32, (num_heads, 2 * reach + 1)),
        np.int32(reach),
    )
    entry = f"short_attention_{head_dim}" if bias is None else f"short_attention_biased_{head_dim}"
    if items:
        kernel("short_attention", entry, out)((num_heads, items // _WARPS), (_WARP * _WARPS,), args)


def plan_capacity(tokens: int, sequences: int) -> int:
    """Rows that are enough for the plan of any batch of at most `tokens` tokens in at most `sequences` sequences."""
    return _whole_ctas((tokens + (_TILE - 1) * min(sequences, tokens)) // _TILE)


def plan_items(cu_seqlens: Int32Array, capacity: int) -> Int32Array:
    """[capacity, 2]: for each warp the first token of its sequence, and length | query tile << 16; zeros: no work.

    cu_seqlens [N+1], on the host; empty sequences are skipped. capacity: `plan_capacity`, of this batch or of the shape
    that a CUDA graph was captured for. Pairs of sequences that fill a CTA of eight tiles come first, the longest before
    the others. Sequences without a partner follow and may span two CTAs.
    Raises ValueError when a sequence is longer than MAX_SEQLEN, or the capacity is too small or no multiple of a CTA.
    """
    lengths = np.diff(cu_seqlens)
    tiles = (lengths + _TILE - 1) // _TILE
    total = int(tiles.sum())
    if lengths.max(initial=0) > MAX_SEQLEN:
        raise ValueError(f"a sequence of {lengths.max()} tokens: short attention supports at most {MAX_SEQLEN}")
    if capacity < total or capacity != _whole_ctas(capacity):
        raise ValueError(f"capacity {capacity}: the plan needs {total} rows, in multiples of {_WARPS}")
    order = _order(tiles) if total > _WARPS else np.arange(len(tiles))  # one CTA holds all, in any order
    counts = tiles[order]
    sequence = np.repeat(order, counts)
    tile = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    items = np.zeros((capacity, 2), np.int32)
    items[:total, 0] = cu_seqlens[sequence]
    items[:total, 1] = lengths[sequence] | tile << 16
    return items


def _order(tiles: Int32Array) -> npt.NDArray[np.intp]:
    """Sequences in the order of the plan: each of n tiles next to one of 8 - n, as long as there are any."""
    by_size = np.argsort(tiles, kind="stable")
    rank = np.empty(len(tiles), np.intp)  # among sequences with as many tiles
    rank[by_size] = np.arange(len(tiles)) - np.searchsorted(tiles[by_size], tiles[by_size])
    partners = np.bincount(tiles, minlength=_WARPS + 1)[_WARPS - tiles]
    alone = (rank >= partners) & (tiles < _WARPS)
    larger = np.where(alone, tiles, np.maximum(tiles, _WARPS - tiles))
    digits = (alone, _WARPS - larger, rank, _WARPS - tiles)  # the most significant first
    return np.ravel_multi_index(digits, (2, _WARPS + 1, len(tiles) + 1, _WARPS + 1)).argsort(kind="stable")


def _whole_ctas(items: int) -> int:
    return -(-items // _WARPS) * _WARPS
