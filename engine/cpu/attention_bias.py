"""Self-attention with relative positions on a CPU, in plain torch, for sequences of one length at a time.

Scores and softmax are float32 in any precision of the products. Each sequence is computed alone: the rounding of
products may depend on the number of rows and on their place in memory, and a result must not depend on its batch.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.cpu.attention import is_computed_in_float32
from penstock.engine.cpu.norm import normalise
from penstock.engine.model.layout import Group
from penstock.engine.model.positions import relative_rows
from penstock.engine.model.weights import DisentangledAttention, DistanceAttention, Heads, Norm, RotaryAttention

# Queries and context [heads, n, L, d]; keys and values [their heads, n, L, d].
GroupAttention = Callable[[Tensor, Tensor, Tensor], Tensor]

_WINDOW_QUERIES = 64  # computed at a time where attention has a window; more took longer, and fewer not much less


def attend_groups(qkv: Tensor, groups: Sequence[Group], heads: Heads, attention: GroupAttention) -> Tensor:
    """qkv [R, (queries + 2 keys) * dim], in the order of `groups`, to context [R, queries * dim].

    The spare rows at its end are zero.
    """
    context, parts = qkv.new_zeros(len(qkv), heads.width), [heads.queries, heads.keys, heads.keys]
    for group in groups:
        rows = slice(group.start, group.stop)
        view = qkv[rows].view(group.count, group.length, sum(parts), heads.dim)
        out = context[rows].view(group.count, group.length, heads.queries, heads.dim)
        if is_computed_in_float32(group.length):
            view = view.float()
        for index in range(group.count):
            alone = view[index : index + 1].permute(2, 0, 1, 3).contiguous()
            query, key, value = torch.split(alone, parts)
            seen = key[:, :, : group.keys], value[:, :, : group.keys]
            out[index] = attention(query, *seen)[:, 0].transpose(0, 1)
    return context


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Plain attention of each token to itself and those before it."""
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def by_distance(kind: DistanceAttention) -> GroupAttention:
    """softmax(q k' / sqrt(d) + bias) v, with the bias of each pair's distance."""
    reach = kind.bias.shape[1] // 2

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length, head_dim = query.shape[-2:]
        distances = torch.arange(1 - length, length).clamp(-reach, reach)
        columns = kind.bias.float()[:, distances + reach]
        bias = columns.unfold(1, length, 1)  # [heads, L, L], a view: query i reads the columns from L - 1 - i on
        scores = _products(query.flip(-2), key).div_(math.sqrt(head_dim)).add_(bias[:, None])
        return _weighted(scores, value).flip(-2)

    return attention


def disentangled(kind: DisentangledAttention) -> GroupAttention:
    """softmax((q_i k_j' + q_i P_k(i-j)' + k_j P_q(i-j)') / sqrt(terms * d)) v (He et al. 2021, equation 4).

    The tables are laid out for all 2L - 1 distances. A product with such a table holds the scores by distance; a
    strided view along its diagonals puts them in place without an index operation.
    """

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length, head_dim = query.shape[-2:]
        scores = _products(query, key)
        rows = _table_rows(length, kind.num_buckets, kind.max_distance)
        if kind.key_positions is not None:
            scores += _diagonals(query, kind.key_positions[rows.flip(0)])
        if kind.query_positions is not None:
            scores += _diagonals(key, kind.query_positions[rows]).transpose(-1, -2)
        return _weighted(scores / math.sqrt(kind.num_terms * head_dim), value)

    return attention


def rotary(kind: RotaryAttention) -> GroupAttention:
    """Attention of normalised and rotated queries and keys, to the tokens before or all, within the window."""

    def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length, shared = query.shape[-2], len(query) // len(key)
        angles = kind.cosines[:length].float(), kind.sines[:length].float()
        query, key = _rotated(query, kind.query_norm, *angles), _rotated(key, kind.key_norm, *angles)
        key, value = (x if shared == 1 else x.repeat_interleave(shared, dim=0) for x in (key, value))
        if kind.window is None or kind.window >= length - 1:
            return F.scaled_dot_product_attention(query, key, value, is_causal=kind.is_causal)
        return _windowed(query, key, value, kind.window, 0 if kind.is_causal else kind.window)

    return attention


def _windowed(query: Tensor, key: Tensor, value: Tensor, before: int, after: int) -> Tensor:
    """Attention to so many tokens on each side: of some queries at a time, to the keys that any of them sees."""
    length, near, parts = query.shape[-2], _near(before, after).to(query.dtype), []
    for first in range(0, length, _WINDOW_QUERIES):
        stop = min(first + _WINDOW_QUERIES, length)
        seen = slice(max(first - before, 0), min(stop + after, length))
        mask = near[: stop - first, seen.start - first + before : seen.stop - first + before]
        some = query[..., first:stop, :], key[..., seen, :], value[..., seen, :]
        parts.append(F.scaled_dot_product_attention(*some, attn_mask=mask))
    return torch.cat(parts, dim=-2)


@lru_cache(maxsize=16)
def _near(before: int, after: int) -> Tensor:
    """[queries, before + queries + after]: 0 where key j - before is in query i's window, minus infinity elsewhere."""
    distances = torch.arange(-before, _WINDOW_QUERIES + after) - torch.arange(_WINDOW_QUERIES)[:, None]
    return torch.where((distances >= -before) & (distances <= after), 0.0, -math.inf)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """[heads, n, L, d] twice, to float32 [heads, n, L, L]."""
    return torch.matmul(left, right.transpose(-1, -2)).float()


def _diagonals(rows: Tensor, table: Tensor) -> Tensor:
    """float32 [heads, n, L, L] with entry (r, c) = rows[r] . table[L - 1 - r + c]; `table` is [2L - 1, H]."""
    heads, n, length, head_dim = rows.shape
    columns = table.to(rows.dtype).view(2 * length - 1, heads, head_dim).permute(1, 2, 0)
    products = torch.bmm(rows.reshape(heads, n * length, head_dim), columns).float()
    matrix = length * (2 * length - 1)
    strides = (n * matrix, matrix, 2 * length - 2, 1)
    return products.as_strided((heads, n, length, length), strides, length - 1)


@lru_cache(maxsize=1024)
def _table_rows(length: int, num_buckets: int, max_distance: int) -> Tensor:
    """[2L - 1] int64: the row of a relative table for each distance i - j from -(L - 1) to L - 1."""
    return torch.from_numpy(relative_rows(length, num_buckets, max_distance)).long()


def _weighted(scores: Tensor, value: Tensor) -> Tensor:
    return torch.matmul(torch.softmax(scores, dim=-1).to(value.dtype), value)


def _rotated(x: Tensor, norm: Norm | None, cosines: Tensor, sines: Tensor) -> Tensor:
    """norm(x) [heads, n, L, d], with its halves paired, rotated by each position's angles [L, d / 2]."""
    cosines, sines = cosines[: x.shape[-2]], sines[: x.shape[-2]]
    first, second = (x.float() if norm is None else normalise(x.float(), norm)).chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1).to(x.dtype)
