"""Tokens and their positions to embeddings, in torch on any device."""

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from penstock.engine.model.layout import Int64Array
from penstock.engine.model.seq2seq import TokenEmbeddings
from penstock.engine.types import Int32Array


def look_up(embeddings: TokenEmbeddings, tokens: Tensor, positions: Tensor) -> Tensor:
    """[R, H] of tokens [R] at positions [R], without the norms. Padding has no position, where the family says so."""
    words = F.embedding(tokens, embeddings.words)
    if embeddings.positions is None:
        return words
    places = F.embedding(positions, embeddings.positions)
    if embeddings.pad_token is not None:
        places = places.masked_fill((tokens == embeddings.pad_token)[:, None], 0)
    return words + places


def source_positions(tokens: Int32Array, lengths: Int64Array, pad_token: int | None) -> Int64Array:
    """[T]: the position of each token of sources end to end: how many tokens of its source are before it, without
    padding where there is a `pad_token`. A decoder's positions count all tokens."""
    is_counted = tokens != pad_token if pad_token is not None else np.ones(len(tokens), np.bool_)
    before = np.cumsum(is_counted) - is_counted
    starts = np.cumsum(lengths) - lengths
    positions: Int64Array = before - np.repeat(before[starts], lengths)
    return positions
