"""Positions of models that number tokens without padding (fairseq's numbering: RoBERTa, XLM-R, CamemBERT, MPNet).

The pad token may be in a text. There it has the position that padding has, and the tokens behind it go on counting as
if it was not there, as in transformers' create_position_ids_from_input_ids.
"""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.errors import CheckpointError
from penstock.engine.model.weights import Embeddings
from penstock.engine.types import Int32Array, PackedBatch


def with_pad_row(table: Tensor, pad_token: int) -> Tensor:
    """The rows of a position table as `Embeddings` has them: from pad_token + 1 on, and last the row of padding."""
    if not 0 <= pad_token < len(table) - 1:
        raise CheckpointError(
            f"a table of {len(table)} positions has no rows beyond that of the pad token {pad_token}."
        )
    return torch.cat([table[pad_token + 1 :], table[pad_token : pad_token + 1]])


def pad_positions(batch: PackedBatch, embeddings: Embeddings) -> Int32Array | None:
    """[T]: the position of each token. None without a pad token: each has that of its place."""
    if embeddings.pad_token is None or embeddings.positions is None:
        return None
    counted = batch.token_ids != embeddings.pad_token
    if counted.all():
        return None
    counts = np.cumsum(counted) - counted  # counted tokens before each token
    starts = batch.cu_seqlens[:-1]
    counts -= np.repeat(counts[starts], np.diff(batch.cu_seqlens))
    return np.where(counted, counts, len(embeddings.positions) - 1).astype(np.int32)
