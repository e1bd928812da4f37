"""Plain self-attention of a packed batch on a CPU: softmax(q k' / sqrt(d)) v within each sequence.

(Vaswani et al. 2017, equation 1.) Sequences of one length are computed together, on views of the fused QKV product, by
one of two methods, as measured:

- up to 64 tokens: plain float32 products, for a few sequences at a time. torch's fused kernel takes up to twice as
  long, and a call of oneDNN's bfloat16 product takes longer than the float32 products of a few sequences.
- more tokens: torch's scaled_dot_product_attention.

The method depends on a sequence's length alone, so its result does not depend on its batch. torch's fused kernel and
its bfloat16 products choose their way by the number of sequences too, so each longer sequence is computed alone.
Attention with relative positions is in `engine.cpu.attention_bias`.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.model.layout import Group
from penstock.engine.model.weights import Heads

_SHORT_TOKENS = 64
_VECTOR = 16  # float32 values of a vector register: torch's softmax computes shorter rows value by value
_SHORT_SEQUENCES = 8  # computed at a time: their queries, keys and values stay in the cache


def attend(qkv: Tensor, groups: Sequence[Group], heads: Heads) -> Tensor:
    """qkv [R, 3W], in the order of `groups`, to context [R, W], zero in the spare rows at its end."""
    if heads.keys != heads.queries:
        raise RuntimeError("plain attention has a head of keys for each of queries. This is a bug.")
    context = qkv.new_empty(len(qkv), heads.width)
    for group in groups:
        rows = slice(group.start, group.stop)
        view = qkv[rows].view(group.count, group.length, 3, heads.queries, heads.dim).permute(2, 0, 3, 1, 4)
        out = context[rows].view(group.count, group.length, heads.queries, heads.dim).transpose(1, 2)
        is_short = is_computed_in_float32(group.length)
        step = _SHORT_SEQUENCES if is_short else 1
        for first in range(0, group.count, step):
            some = view[:, first : first + step]
            if is_short:
                part = _attend_short(some, group.keys)
            else:
                query, key, value = some
                part = F.scaled_dot_product_attention(query, key[:, :, : group.keys], value[:, :, : group.keys])
            out[first : first + step].copy_(part)
    context[groups[-1].stop :] = 0
    return context


def is_computed_in_float32(length: int) -> bool:
    """Whether attention of so many tokens is computed in float32, whatever the dtype."""
    return length <= _SHORT_TOKENS


def _attend_short(qkv: Tensor, keys: int | None) -> Tensor:
    """qkv [3, n, heads, L, d] of any floating type to context [n, heads, L, d], float32, by the first `keys` keys."""
    _, n, num_heads, length, head_dim = qkv.shape
    # Contiguous: MKL's rounding may depend on strides and alignment, which are then the same for each sequence.
    query, key, value = qkv.float().contiguous().view(3, n * num_heads, length, head_dim)
    key, value = key[:, :keys], value[:, :keys]
    scores = torch.bmm(query, key.transpose(1, 2)).mul_(1.0 / math.sqrt(head_dim))
    num_keys = key.shape[1]
    if num_keys < _VECTOR:
        scores = F.pad(scores, (0, _VECTOR - num_keys), value=-math.inf)
    weights = torch.softmax(scores, dim=-1)[:, :, :num_keys]
    return torch.bmm(weights, value).view(n, num_heads, length, head_dim)
