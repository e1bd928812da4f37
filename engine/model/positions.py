"""Positions of tokens, for models whose numbering is not the token's place.

Models that number tokens without padding (fairseq's numbering: RoBERTa, XLM-R, CamemBERT, MPNet): the pad token may be
in a text. There it has the position that padding has, and the tokens behind it go on counting as if it was not there,
as in transformers' create_position_ids_from_input_ids.

Relative positions of DeBERTa-v2/v3 (He et al., ICLR 2021), equation 3, with the logarithmic buckets of its second
version: "content to position" reads row clamp(b(i - j) + span) of the relative embeddings for query i and key j,
"position to content" row clamp(-b(j - i) + span). Buckets are odd in the distance, so both read the same row and one
table serves both.
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


def relative_span(position_buckets: int, max_relative_positions: int) -> int:
    """Half the number of relative embeddings in use. Arguments as in `relative_rows`."""
    return position_buckets if position_buckets > 0 else max_relative_positions


def relative_rows(reach: int, position_buckets: int, max_relative_positions: int) -> Int32Array:
    """[2 * reach - 1]: at d + reach - 1 the row of distance d = query - key, as `disentangled_attention` takes it.

    reach: the longest sequence in tokens. position_buckets: as in config.json; 0 or less: one row a distance.
    max_relative_positions: as in config.json, or its max_position_embeddings where that is below 1. Values are rounded
    to float32 where transformers rounds. The last place of a logarithm can then decide only on a bucket's edge; with
    the published 256 buckets over 512 positions no distance is within a hundred such places of one.
    Raises ValueError when reach is below 1, or the buckets have no room up to max_relative_positions.
    """
    if reach < 1:
        raise ValueError(f"reach must be at least 1 token, not {reach}")
    distances = np.arange(1 - reach, reach)
    span = relative_span(position_buckets, max_relative_positions)
    buckets = _buckets(distances, position_buckets, max_relative_positions) if position_buckets > 0 else distances
    return np.clip(buckets + span, 0, 2 * span - 1).astype(np.int32)


def _buckets(
    distances: np.ndarray[tuple[int], np.dtype[np.int64]], position_buckets: int, max_relative_positions: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Bucket of each distance: one each up to half the buckets, then widening with the logarithm."""
    middle = position_buckets // 2
    far = np.abs(distances) > middle
    if far.any() and not 0 < middle < max_relative_positions - 1:
        raise ValueError(f"{position_buckets} buckets do not reach {max_relative_positions} positions")
    ratio = np.abs(distances[far]).astype(np.float32) / np.float32(middle)
    limit = np.array([(max_relative_positions - 1) / middle], np.float32) if far.any() else np.ones(1, np.float32)
    fraction = _log(ratio) / _log(limit)
    buckets = distances.copy()
    buckets[far] = np.sign(distances[far]) * (np.ceil(fraction * np.float32(middle - 1)) + np.float32(middle))
    return buckets


def _log(values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """The float32 nearest to the logarithm; numpy's logarithm of a float32 can differ in the last place."""
    return np.log(values.astype(np.float64)).astype(np.float32)
