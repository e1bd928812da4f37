"""Self-attention of a packed batch: one call a length group, on views of the fused QKV product. No mask, no padding."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.layout import Group


def attend(qkv: Tensor, groups: Sequence[Group], num_heads: int) -> Tensor:
    """softmax(q k' / sqrt(d)) v within each sequence (Vaswani et al. 2017, equation 1).

    qkv [T, 3H] sorted as `groups` say; returns [T, H].
    """
    width = qkv.shape[1] // 3
    parts = []
    for group in groups:
        view = qkv[group.start : group.stop].view(group.count, group.length, 3, num_heads, width // num_heads)
        query, key, value = view.permute(2, 0, 3, 1, 4)
        context = F.scaled_dot_product_attention(query, key, value)  # [n, heads, L, d], laid out as [n, L, heads, d]
        parts.append(context.transpose(1, 2).reshape(group.count * group.length, width))
    return parts[0] if len(parts) == 1 else torch.cat(parts)
