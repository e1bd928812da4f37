"""Attention of single tokens to paged keys and values, on a CPU.

Rows whose keys fill about as many pages are computed together. Their pages are gathered and attended to by torch's
fused kernel. The beams of one sequence share the gathered pages of their source.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.generation.pages import Int64Array, pages_of

_STEPS = 4  # sizes of groups between two powers of two
# Keys of one group, unless one row has more: gathered, they stay in the processor's caches. With 128 rows of some 120
# tokens in one group, a step of t5-small's shape took three times as long (two cores of an AMD EPYC).
_MOST_KEYS = 1024


@dataclass(frozen=True, slots=True)
class KeyGroup:
    """N rows of a page table and the M queries of each, a batch's rows from N * M in number."""

    queries: Tensor  # [N * M] rows of the batch
    count: int  # N
    pages: Tensor  # [N * P]
    positions: Tensor  # [N] of the last key of each row
    mask: Tensor  # [N, 1, 1, S]: 0 at a key, -inf behind the last; S = P * page_size


def group_keys(pages: Int64Array, lengths: Int64Array, queries: Int64Array, page_size: int) -> list[KeyGroup]:
    """Rows of a page table [N, ...], their positions [N] and their queries [N, M], in groups of about equal length.

    A group is small enough for the processor's caches.
    """
    widths = np.array([_rounded(pages_of(length, page_size)) for length in lengths.tolist()])
    groups = []
    for width in np.unique(widths).tolist():
        alike, most = np.flatnonzero(widths == width), max(1, _MOST_KEYS // (width * page_size))
        for own in np.split(alike, range(most, len(alike), most)):
            behind = np.arange(width * page_size) >= lengths[own, None]
            groups.append(
                KeyGroup(
                    queries=torch.from_numpy(queries[own].ravel()),
                    count=len(own),
                    pages=torch.from_numpy(np.ascontiguousarray(_widened(pages, width)[own]).ravel()),
                    positions=torch.from_numpy(lengths[own] - 1),
                    mask=torch.from_numpy(np.where(behind, np.float32(-np.inf), np.float32(0)))[:, None, None],
                )
            )
    return groups


def attend_pages(
    query: Tensor, key_values: Tensor, groups: Sequence[KeyGroup], num_heads: int, bias: Tensor | None
) -> Tensor:
    """query [R, W] to context [R, W], zero in the rows of no group.

    key_values [num_pages, page_size, 2W]: a layer's pages. bias [num_heads, 2D + 1]: of `DistanceAttention`.
    """
    context = query.new_zeros(query.shape)
    width = query.shape[1]
    for group in groups:
        asked = query[group.queries].view(group.count, -1, num_heads, width // num_heads).transpose(1, 2)
        found = key_values.flatten(1).index_select(0, group.pages)
        keys, values = found.view(group.count, -1, 2, num_heads, width // num_heads).permute(2, 0, 3, 1, 4)
        mask = group.mask if bias is None else group.mask + _biases(bias, group)
        part = F.scaled_dot_product_attention(asked, keys, values, attn_mask=mask)
        context[group.queries] = part.transpose(1, 2).reshape(-1, width)
    return context


def _biases(bias: Tensor, group: KeyGroup) -> Tensor:
    """[N, num_heads, 1, S]: the bias of each key's distance to the last, where its query is."""
    reach = bias.shape[1] // 2
    distances = torch.arange(group.mask.shape[-1]) - group.positions[:, None]
    return bias[:, distances.clamp(-reach, reach) + reach].transpose(0, 1)[:, :, None]


def _rounded(pages: int) -> int:
    """Rounded up to one of a few sizes, at most a quarter more."""
    step = max(1, 1 << max(0, pages.bit_length() - _STEPS + 1))
    return -(-pages // step) * step


def _widened(pages: Int64Array, width: int) -> Int64Array:
    """The first `width` columns; NO_PAGE in those that a narrower table lacks."""
    if width <= pages.shape[1]:
        return pages[:, :width]
    return np.pad(pages, ((0, 0), (0, width - pages.shape[1])))
