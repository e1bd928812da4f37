"""The likeliest tokens of rows of logits, but for those that are banned: a kernel, or torch on a device without it."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from penstock.engine.generation_options import GenerationOptions
from penstock.engine.gpu.uploads import upload
from penstock.engine.kernels.candidates import SIZES, candidates

MAX_CANDIDATES = max(SIZES)
_SETS = 64  # of banned tokens: few, for they come with a model or with an application
_BITS = 8


class BanTable:
    """Sets of banned tokens, each kept from its first request on. Of a set, the next row has the end tokens too."""

    def __init__(self, columns: int, device: torch.device) -> None:
        """columns: tokens of a row, a multiple of 8."""
        self.bits = torch.zeros(2 * _SETS, columns // _BITS, dtype=torch.uint8, device=device)
        self._rows: dict[tuple[frozenset[int], frozenset[int]], int] = {}

    def row_of(self, options: GenerationOptions) -> int | None:
        """The first row of the options' set; None if there is no room for it, or it is no set."""
        banned = banned_tokens(options)
        if banned is None:
            return None
        key = banned, frozenset(options.eos_token_ids)
        if key not in self._rows and len(self._rows) < _SETS:
            row = 2 * len(self._rows)
            self._write(row, banned)
            self._write(row + 1, banned | key[1])
            self._rows[key] = row
        return self._rows.get(key)

    def _write(self, row: int, tokens: Iterable[int]) -> None:
        is_banned = np.zeros(self.bits.shape[1] * _BITS, np.uint8)
        is_banned[list(tokens)] = 1
        packed = np.packbits(is_banned, bitorder="little")
        self.bits[row] = upload(self.bits.device, packed)[0]


def banned_tokens(options: GenerationOptions) -> frozenset[int] | None:
    """Tokens that are banned at every step; None if that depends on earlier tokens."""
    ends = {(token,) for token in options.eos_token_ids}
    words = [word for word in options.bad_words_ids if word not in ends]
    if any(len(word) > 1 for word in words):
        return None
    return frozenset((*(word[0] for word in words), *options.suppress_tokens))


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
    bits = torch.arange(_BITS, dtype=torch.uint8, device=logits.device)
    is_banned = (bans[ban_rows][:, :, None] >> bits & 1).flatten(1)[:, :vocabulary] != 0
    allowed = scores.masked_fill(is_banned, -torch.inf)
    log_sum = torch.where(renormalize[:, None] != 0, allowed, scores).logsumexp(1, keepdim=True)
    values, tokens = allowed.topk(size)
    found = values - log_sum
    # A row of which all tokens are banned has no sum.
    has_none = log_sum == -torch.inf
    return found.masked_fill(has_none, -torch.inf), tokens.int().masked_fill(values == -torch.inf, 0)
