"""Plain self-attention of a packed batch on a CPU: softmax(q k' / sqrt(d)) v within each sequence.

(Vaswani et al. 2017, equation 1.) Sequences of one length are computed together, on views of the fused QKV product, by
one of two methods, as measured:

- up to 64 tokens: plain float32 products, for a few sequences at a time. torch's fused kernel takes up to twice as
  long, and a call of oneDNN's bfloat16 product takes longer than the float32 products of a few sequences.
- more tokens: torch's scaled_dot_product_attention.

The method depends on a sequence's length alone, so its result does not depend on its batch. Attention with relative
positions is in `engine.cpu.attention_bias`.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.model.layout import Group

_SHORT_TOKENS = 64
_VECTOR = 16  # float32 values of a vector register: torch's softmax computes shorter rows value by value
_SHORT_SEQUENCES = 8  # computed at a time: their queries, keys and values stay in the cache


def attend(qkv: Tensor, groups: Sequence[Group], num_heads: int) -> Tensor:
    """qkv [R, 3H], in the order of `groups`, to context [R, H], zero in the spare rows at its end."""
    width = qkv.shape[1] // 3
    context = qkv.new_empty(len(qkv), width)
    for group in groups:
        rows = slice(group.start, group.stop)
        view = qkv[rows].view(group.count, group.length, 3, num_heads, width // num_heads).permute(2, 0, 3, 1, 4)
        out = context[rows].view(group.count, group.length, num_heads, -1).transpose(1, 2)
        if group.length > _SHORT_TOKENS:
            out.copy_(F.scaled_dot_product_attention(*view))
            continue
        for first in range(0, group.count, _SHORT_SEQUENCES):
            few = slice(first, first + _SHORT_SEQUENCES)
            out[few].copy_(_attend_short(view[:, few]))
    context[groups[-1].stop :] = 0
    return context


def _attend_short(qkv: Tensor) -> Tensor:
    """qkv [3, n, heads, L, d] of any floating type to context [n, heads, L, d], float32."""
    _, n, num_heads, length, head_dim = qkv.shape
    query, key, value = qkv.float().reshape(3, n * num_heads, length, head_dim)
    scores = torch.bmm(query, key.transpose(1, 2)).mul_(1.0 / math.sqrt(head_dim))
    if length < _VECTOR:
        scores = F.pad(scores, (0, _VECTOR - length), value=-math.inf)
    weights = torch.softmax(scores, dim=-1)[:, :, :length]
    return torch.bmm(weights, value).view(n, num_heads, length, head_dim)
