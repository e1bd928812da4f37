"""Attention from single tokens to keys and values in a paged cache: a kernel, or torch on a device without it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.engine.kernels.paged_attention import paged_attention, supports


@dataclass(frozen=True, slots=True)
class CacheLines:
    """Keys that each of R rows attends to. All int32."""

    table: Tensor  # [N, C] pages
    lengths: Tensor  # [N] positions of each line; 0: its rows attend to nothing
    lines: Tensor | None  # [R] line of each row; None: row r has line r
    page_size: int  # a power of two


def attend_lines(
    query: Tensor, cache: Tensor, cached: CacheLines, num_heads: int, scale: float, bias: Tensor | None
) -> Tensor:
    """The context [R, W] of query [R, W], or of qkv [R, 3W] whose keys and values come last and are written.

    cache [slots, 2W]; bias [num_heads, 2D + 1]: of `DistanceAttention`.
    """
    width = cache.shape[1] // 2
    if query.is_cuda and query.dtype is not torch.float32 and supports(width // num_heads):
        out = torch.empty(len(query), width, dtype=query.dtype, device=query.device)
        table, size = cached.table, cached.page_size
        paged_attention(out, query, cache, table, size, cached.lengths, cached.lines, num_heads, scale, bias)
        return out
    return attend_lines_by_torch(query, cache, cached, num_heads, scale, bias)


def attend_lines_by_torch(
    query: Tensor, cache: Tensor, cached: CacheLines, num_heads: int, scale: float, bias: Tensor | None
) -> Tensor:
    """As `attend_lines`, on any device and in float32. It reads as many positions as a line may have."""
    rows, width = len(query), cache.shape[1] // 2
    size, lengths = cached.page_size, cached.lengths
    places = torch.arange(cached.table.shape[1] * size, dtype=torch.int32, device=query.device)
    slots = cached.table[:, places // size] * size + places % size  # [N, S]
    last = (lengths - 1).clamp(min=0)
    if query.shape[1] != width:
        is_live = lengths > 0
        own = slots.gather(1, last[:, None].long())[:, 0].masked_fill(~is_live, 0).long()
        cache.index_copy_(0, own, query[:, width:].masked_fill(~is_live[:, None], 0))
    if cached.lines is not None:
        slots, lengths, last = slots[cached.lines], lengths[cached.lines], last[cached.lines]
    found = cache[slots].view(rows, len(places), 2, num_heads, -1).float()
    asked = query[:, :width].reshape(rows, num_heads, -1).float()
    scores = torch.einsum("rhd,rshd->rhs", asked, found[:, :, 0]) * scale
    if bias is not None:
        reach = bias.shape[1] // 2
        distances = (places - last[:, None]).clamp(-reach, reach) + reach
        scores = scores + bias.float()[:, distances].transpose(0, 1)
    weights = scores.masked_fill((places >= lengths[:, None])[:, None], -torch.inf).softmax(dim=-1)
    context = torch.einsum("rhs,rshd->rhd", weights, found[:, :, 1]).reshape(rows, width)
    return context.masked_fill((lengths == 0)[:, None], 0).to(query.dtype)
