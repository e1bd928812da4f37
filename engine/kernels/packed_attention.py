"""Launch of attention over packed sequences of any length, and the plan that gives each CTA its queries.

Plain, with a bias for each distance, or to near keys, which heads may share.
"""

import math
import struct
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import head_dim_of, kernel, pointer
from penstock.engine.kernels.short_attention import MAX_SEQLEN as SHORT_SEQLEN
from penstock.engine.model.weights import Heads
from penstock.engine.types import Int32Array

MAX_SEQLEN = 65_535  # in sixteen bits of the plan
QUERIES = (64, 128)  # of a CTA: 128 for throughput; 64 for batches that would leave the device half empty
_WARPS = {(32, 64): 4, (32, 128): 4, (64, 64): 4, (64, 128): 4, (128, 64): 4, (128, 128): 8}  # by head_dim, queries
_HEAD_DIMS = (32, 64, 128)
_WARP = 32
_RING_ROWS = 3 * 2 * 64  # stages, keys and values, tile: as in packed_tile.cuh
_BYTES_PER_VALUE = 2  # float16 and bfloat16
_BYTES_OF_BIAS = 4  # float32
_GROUP = 64  # queries that finish together at the end of a sequence, or are left out together
_CONSTANT = 63  # columns at each end of a table of biases, as in biased_attention.cu
_WINDOWED = struct.Struct("6i")  # of packed_tile.cuh
_MAX_ITEMS = 65_535  # of a grid's second dimension


def supports(head_dim: int, max_seqlen: int, queries: int, device_shared_bytes: int) -> bool:
    """Whether `packed_attention` supports sequences of up to `max_seqlen` tokens and heads of `head_dim` elements.

    queries: of a CTA. device_shared_bytes: `library.block_shared_bytes`.
    """
    fits = shared_bytes(head_dim, queries) <= device_shared_bytes
    return head_dim in _HEAD_DIMS and max_seqlen <= MAX_SEQLEN and fits


def shared_bytes(head_dim: int, queries: int) -> int:
    """Shared memory of a CTA. Heads of 128 elements need more than the 99 KiB of most devices before Hopper."""
    return (queries + _RING_ROWS) * head_dim * _BYTES_PER_VALUE


def packed_attention(
    out: Tensor,
    qkv: Tensor,
    plan: Tensor,
    num_heads: int,
    scale: float,
    queries: int = 128,
    bias: Tensor | None = None,
) -> None:
    """softmax(scale q k' + bias) v within each sequence of the plan, into `out`. One launch, nothing allocated.

    out [R, H] and qkv [R, 3H] (query, key, value; each [num_heads, head_dim]), float16 or bfloat16, no aliasing. Rows
    in no sequence of the plan are neither read nor written. plan [C, 2] int32 on the device: `plan_items` for the same
    `queries`, one of QUERIES. scale > 0. bias: `distance_table` for this scale, by the distance of query and key. A
    row's bits depend on its own sequence alone, and on `queries`.
    Raises ValueError for other shapes, types or alignment.
    """
    if bias is None:
        _launch("packed_attention", out, qkv, plan, num_heads, scale, queries)
        return
    reach = bias.shape[1] // 2
    more = pointer("bias", bias, torch.float32, (num_heads, 2 * reach + 1)), np.int32(reach)
    _launch("biased_attention", out, qkv, plan, num_heads, scale, queries, more, _BYTES_OF_BIAS * (2 * reach + 1))


def windowed_attention(
    out: Tensor,
    qkv: Tensor,
    plan: Tensor,
    heads: Heads,
    scale: float,
    queries: int = 128,
    window: int | None = None,
    *,
    is_causal: bool = False,
) -> None:
    """As `packed_attention`, of heads that may share keys, to keys at most `window` tokens away.

    qkv [R, (heads.queries + 2 * heads.keys) * heads.dim]. is_causal: whether a query sees no key after it.
    """
    before = MAX_SEQLEN if window is None else min(window, MAX_SEQLEN)
    after = 0 if is_causal else before
    key_width, width = heads.key_width, heads.width + 2 * heads.key_width
    windowed = _WINDOWED.pack(before, after, before + after, heads.queries // heads.keys, key_width, width)
    if out.shape[1] != heads.width:
        raise ValueError(f"out must have {heads.width} columns, not {out.shape[1]}")
    _launch("windowed_attention", out, qkv, plan, heads.queries, scale, queries, (windowed,), key_width=key_width)


def _launch(
    name: str,
    out: Tensor,
    qkv: Tensor,
    plan: Tensor,
    num_heads: int,
    scale: float,
    queries: int,
    more: tuple[Any, ...] = (),
    more_bytes: int = 0,
    key_width: int | None = None,
) -> None:
    """more: the kernel's further arguments; more_bytes: of shared memory; key_width: of a row's keys, if not H."""
    (rows, hidden), dtype, items = out.shape, out.dtype, len(plan)
    head_dim = head_dim_of(hidden, num_heads, _HEAD_DIMS)
    if items > _MAX_ITEMS or plan.data_ptr() % 8:
        raise ValueError(f"plan must have at most {_MAX_ITEMS} rows, not {items}, and begin on an 8-byte boundary")
    if not scale > 0:
        raise ValueError(f"scale must be positive, not {scale}")
    if queries not in QUERIES:
        raise ValueError(f"{queries} queries: a CTA has one of {QUERIES}")
    args = (
        pointer("out", out, dtype, (rows, hidden)),
        pointer("qkv", qkv, dtype, (rows, hidden + 2 * (hidden if key_width is None else key_width))),
        pointer("plan", plan, torch.int32, (items, 2)),
        np.float32(scale * math.log2(math.e)),
        *more,
    )
    if items:
        entry = kernel(name, f"{name}_{head_dim}_{queries}", out)
        threads = _WARP * _WARPS[head_dim, queries]
        entry((num_heads, items), (threads,), args, shared_bytes(head_dim, queries) + more_bytes)


def distance_table(bias: Tensor, scale: float) -> Tensor:
    """Biases for `packed_attention` and `short_attention`, float32 [num_heads, 2 * reach + 1], over the scale.

    bias [num_heads, 2D + 1]: of `DistanceAttention`. Column reach + d is of a key d tokens after its query. The table
    reaches further than D, so that the kernels need not look at the distances of single scores.
    """
    last, reach = bias.shape[1] // 2, _reach(bias)
    distances = torch.arange(-reach, reach + 1, device=bias.device).clamp(-last, last)
    return (bias.float()[:, distances + last] / scale).contiguous()


def table_bytes(bias: Tensor) -> int:
    """Shared memory that the biases of a `DistanceAttention` take of a CTA."""
    return _BYTES_OF_BIAS * (2 * _reach(bias) + 1)


def _reach(bias: Tensor) -> int:
    return max(bias.shape[1] // 2 + _CONSTANT, SHORT_SEQLEN)


def plan_capacity(tokens: int, sequences: int, queries: int = 128) -> int:
    """Rows that are enough for the plan of any batch of at most `tokens` tokens in at most `sequences` sequences."""
    return (tokens + (queries - 1) * min(sequences, tokens)) // queries


def plan_items(cu_seqlens: Int32Array, capacity: int, queries: int = 128, *, is_causal: bool = False) -> Int32Array:
    """[capacity, 2]: for each CTA the first token of its sequence, and length | query tile << 16; zeros: no work.

    cu_seqlens [N+1], on the host; empty sequences are skipped. capacity: `plan_capacity`, of this batch or of the
    shape that a CUDA graph was captured for. What takes longest comes first, so that no long one runs alone at the
    end: most products, of keys (of a causal one, those up to its last query) and 64 queries. Equal tiles of a sequence
    are adjacent: they share its keys and values in L2.
    Raises ValueError when a sequence is longer than MAX_SEQLEN or the capacity is too small.
    """
    lengths = np.diff(cu_seqlens)
    if lengths.max(initial=0) > MAX_SEQLEN:
        raise ValueError(f"a sequence of {lengths.max()} tokens: packed attention supports at most {MAX_SEQLEN}")
    order = np.argsort(-lengths, kind="stable")
    tiles = (lengths[order] + queries - 1) // queries
    total = int(tiles.sum())
    if capacity < total:
        raise ValueError(f"capacity {capacity}: the plan needs {total} rows")
    sequence = np.repeat(order, tiles)
    tile = np.arange(total) - np.repeat(np.cumsum(tiles) - tiles, tiles)
    items = np.zeros((capacity, 2), np.int32)
    items[:total, 0] = cu_seqlens[sequence]
    items[:total, 1] = lengths[sequence] | tile << 16
    own = lengths[sequence]
    keys = np.minimum(own, (tile + 1) * queries) if is_causal else own
    groups = -(-np.minimum(own - tile * queries, queries) // _GROUP)
    items[:total] = items[np.argsort(-keys * groups, kind="stable")]
    return items
