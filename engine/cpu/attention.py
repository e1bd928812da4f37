"""Self-attention of a packed batch, without a padded batch: softmax(q k' / sqrt(d)) v within each sequence.

(Vaswani et al. 2017, equation 1.) Two ways, chosen for each span of sequences by what was measured:

- `Group`: sequences of one length as one scaled_dot_product_attention, on views of the fused QKV product.
- `Tile`: short sequences in bfloat16. Each takes a tile of 16, 32, 48 or 64 rows, filled up with its own last token;
  the extra keys count nothing. torch's fused kernel takes rows shorter than a vector register one number at a time, at
  half the speed.

A sequence's way and tile follow from its own length alone, so its result does not depend on its batch mates.
Attention that knows relative positions is in `engine.attention_bias`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.model.layout import Group

_TILE_STEP = 16
_MAX_TILE = 64


@dataclass(frozen=True, slots=True)
class Tile:
    """`count` sequences of at most `width` tokens, contiguous in tokens [start, stop) of the sorted batch."""

    start: int
    stop: int
    count: int
    width: int
    gather: Tensor  # [count * width] int64: the token that fills each row of the tiles
    bias: Tensor  # [count, 1, 1, width] float32: 0 for a sequence's own tokens, -inf for the filling
    scatter: Tensor  # [stop - start] int64: the row of the tiles that holds each token


def plan_attention(groups: Sequence[Group], dtype: torch.dtype) -> list[Group | Tile]:
    """Once a batch, for all its layers: the spans of the sorted batch and the way of each, in order."""
    if dtype != torch.bfloat16:
        return list(groups)
    plan: list[Group | Tile] = []
    for width, span in groupby(groups, key=lambda group: -(-group.length // _TILE_STEP) * _TILE_STEP):
        members = list(span)
        plan.extend([_tile(width, members)] if width <= _MAX_TILE else members)
    return plan


def attend(qkv: Tensor, plan: Sequence[Group | Tile], num_heads: int) -> Tensor:
    """qkv [R, 3H], sorted as the plan's groups say, to context [R, H], zero in the spare rows after the groups."""
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
    tiles = qkv.index_select(0, tile.gather).view(n, rows, 3, num_heads, head_dim)
    query, key, value = tiles.permute(2, 0, 3, 1, 4).reshape(3, n * num_heads, rows, head_dim)
    scores = torch.bmm(query, key.transpose(1, 2)).view(n, num_heads, rows, rows)
    scores = torch.add(tile.bias, scores, alpha=1.0 / math.sqrt(head_dim))  # float32, as the softmax wants it
    weights = torch.softmax(scores, dim=-1).to(qkv.dtype).view(n * num_heads, rows, rows)
    context = torch.bmm(weights, value).view(n, num_heads, rows, head_dim)
    return context.transpose(1, 2).reshape(n * rows, hidden).index_select(0, tile.scatter)


def _tile(width: int, groups: Sequence[Group]) -> Tile:
    lengths = np.repeat([group.length for group in groups], [group.count for group in groups])[:, None]
    starts = groups[0].start + np.cumsum(lengths) - lengths[:, 0]
    columns = np.arange(width)
    own = columns < lengths
    return Tile(
        start=groups[0].start,
        stop=groups[-1].stop,
        count=len(lengths),
        width=width,
        gather=torch.from_numpy((starts[:, None] + np.minimum(columns, lengths - 1)).reshape(-1)),
        bias=torch.from_numpy(np.where(own, np.float32(0), np.float32(-np.inf)))[:, None, None, :],
        scatter=torch.from_numpy(np.flatnonzero(own)),
    )
