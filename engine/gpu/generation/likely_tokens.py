"""The likeliest tokens of rows of logits: a kernel, or torch on a device without it."""

import torch
from torch import Tensor

from penstock.engine.kernels.candidates import SIZES, candidates

MAX_CANDIDATES = max(SIZES)


def likely_tokens(
    logits: Tensor, vocabulary: int, bans: Tensor, ban_rows: Tensor, renormalize: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Log-probabilities, float32, and tokens, int32, of at least `count` tokens of each row, likeliest first.

    As `penstock.engine.kernels.candidates.candidates`, which says what the arguments are.
    """
    size = next(size for size in SIZES if size >= count)
    if logits.is_cuda and logits.dtype is not torch.float32:
        values = torch.empty(len(logits), size, dtype=torch.float32, device=logits.device)
        tokens = torch.empty(len(logits), size, dtype=torch.int32, device=logits.device)
        candidates(values, tokens, logits, vocabulary, bans, ban_rows, renormalize)
        return values, tokens
    return likely_tokens_by_torch(logits, vocabulary, bans, ban_rows, renormalize, min(size, vocabulary))


def likely_tokens_by_torch(
    logits: Tensor, vocabulary: int, bans: Tensor, ban_rows: Tensor, renormalize: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """As `likely_tokens`, on any device and in float32."""
    scores = logits[:, :vocabulary].float()
    bits = torch.arange(8, dtype=torch.uint8, device=logits.device)
    is_banned = (bans[ban_rows][:, :, None] >> bits & 1).flatten(1)[:, :vocabulary] != 0
    allowed = scores.masked_fill(is_banned, -torch.inf)
    log_sum = torch.where(renormalize[:, None] != 0, allowed, scores).logsumexp(1, keepdim=True)
    values, tokens = allowed.topk(size)
    found = values - log_sum
    # A row of which all tokens are banned has no sum.
    has_none = log_sum == -torch.inf
    return found.masked_fill(has_none, -torch.inf), tokens.int().masked_fill(values == -torch.inf, 0)
