"""Plain self-attention of a packed batch on a CPU: softmax(q k' / sqrt(d)) v within each sequence.

(Vaswani et al. 2017, equation 1.) One of two methods is used for each span of sequences, as measured:

- `Group`: sequences of one length as one scaled_dot_product_attention, on views of the fused QKV product.
- `Tile`: a few short sequences in bfloat16. Each fills 16, 32, 48 or 64 rows with copies of its last token, whose keys
  are masked. torch's fused kernel runs rows shorter than a vector register at half the speed. The products are float32:
  a call of oneDNN's bfloat16 product takes longer than the float32 products of a few sequences.

The method and the tile's rows depend on a sequence's length alone, so its result does not depend on its batch.
Attention with relative positions is in `engine.cpu.attention_bias`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.model.layout import Group, Int64Array

_TILE_STEP = 16
_MAX_TILE = 64
_MOST_SEQUENCES = 8  # of a tile: their queries, keys and values stay in the cache
_KEPT_PLANS = 512


@dataclass(frozen=True, slots=True)
class Tile:
    """`count` sequences of at most `width` tokens, contiguous in tokens [start, stop) of the sorted batch."""

    start: int
    stop: int
    count: int
    width: int
    token_of_row: Tensor  # [count * width] int64: the token in each row of the tiles
    bias: Tensor  # [count, 1, 1, width] float32: 0 for a sequence's own tokens, -inf for copies
    row_of_token: Tensor  # [stop - start] int64: the row of the tiles that holds each token


def plan_attention(groups: Sequence[Group], dtype: torch.dtype) -> list[Group | Tile]:
    """The spans of the sorted batch and their methods, in order. Made once a batch, for all layers. Not written to."""
    if len(groups) == 1 and groups[0].count == 1:
        return _plan_of_one(groups[0], dtype)
    return _plan(groups, dtype)


@lru_cache(maxsize=_KEPT_PLANS)
def _plan_of_one(group: Group, dtype: torch.dtype) -> list[Group | Tile]:
    """A single text waits for its plan."""
    return _plan([group], dtype)


def _plan(groups: Sequence[Group], dtype: torch.dtype) -> list[Group | Tile]:
    if dtype != torch.bfloat16:
        return list(groups)
    plan: list[Group | Tile] = []
    for width, span in groupby(groups, key=lambda group: -(-group.length // _TILE_STEP) * _TILE_STEP):
        members = list(span)
        plan.extend(_tiles(width, members) if width <= _MAX_TILE else members)
    return plan


def attend(qkv: Tensor, plan: Sequence[Group | Tile], num_heads: int) -> Tensor:
    """qkv [R, 3H], in the order of the plan, to context [R, H], zero in the spare rows at its end."""
    parts = [_attend_tile(qkv, s, num_heads) if isinstance(s, Tile) else _attend_group(qkv, s, num_heads) for s in plan]
    if (spare := len(qkv) - plan[-1].stop) > 0:
        parts.append(qkv.new_zeros(spare, qkv.shape[1] // 3))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_group(qkv: Tensor, group: Group, num_heads: int) -> Tensor:
    width = qkv.shape[1] // 3
    view = qkv[group.start : group.stop].view(group.count, group.length, 3, num_heads, width // num_heads)
    query, key, value = view.permute(2, 0, 3, 1, 4)
    context = F.scaled_dot_product_attention(query, key, value)  # [n, heads, L, d], laid out as [n, L, heads, d]
    return context.transpose(1, 2).reshape(group.count * group.length, width)


def _attend_tile(qkv: Tensor, tile: Tile, num_heads: int) -> Tensor:
    hidden, n, rows = qkv.shape[1] // 3, tile.count, tile.width
    head_dim = hidden // num_heads
    tiles = qkv.index_select(0, tile.token_of_row).float().view(n, rows, 3, num_heads, head_dim)
    query, key, value = tiles.permute(2, 0, 3, 1, 4).reshape(3, n * num_heads, rows, head_dim)
    scores = torch.bmm(query, key.transpose(1, 2)).view(n, num_heads, rows, rows)
    scores = torch.add(tile.bias, scores, alpha=1.0 / math.sqrt(head_dim))
    weights = torch.softmax(scores, dim=-1).view(n * num_heads, rows, rows)
    context = torch.bmm(weights, value).view(n, num_heads, rows, head_dim)
    return context.transpose(1, 2).reshape(n * rows, hidden).index_select(0, tile.row_of_token).to(qkv.dtype)


def _tiles(width: int, groups: Sequence[Group]) -> list[Tile]:
    lengths = np.repeat([group.length for group in groups], [group.count for group in groups])
    starts = groups[0].start + np.cumsum(lengths) - lengths
    cuts = range(0, len(lengths), _MOST_SEQUENCES)
    return [_tile(width, starts[cut : cut + _MOST_SEQUENCES], lengths[cut : cut + _MOST_SEQUENCES]) for cut in cuts]


def _tile(width: int, starts: Int64Array, lengths: Int64Array) -> Tile:
    columns = np.arange(width)
    own = columns < lengths[:, None]
    return Tile(
        start=int(starts[0]),
        stop=int(starts[-1] + lengths[-1]),
        count=len(lengths),
        width=width,
        token_of_row=torch.from_numpy((starts[:, None] + np.minimum(columns, lengths[:, None] - 1)).reshape(-1)),
        bias=torch.from_numpy(np.where(own, np.float32(0), np.float32(-np.inf)))[:, None, None, :],
        row_of_token=torch.from_numpy(np.flatnonzero(own)),
    )
