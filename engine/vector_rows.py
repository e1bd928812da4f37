"""Rows that hold more than one vector: of `embed_sparse`, `embed_tokens` and `embed_all`, as flat arrays of numbers.

The engine joins them, caches keep them as they are, and what makes replies splits them. Ids and counts are float32
numbers, which are exact below 2^24: a vocabulary, or a sequence, is shorter.
"""

import numpy as np
import numpy.typing as npt

from penstock.engine.types import Float32Array, Int32Array

_EXACT = 1 << 24  # float32 holds every whole number up to here


def join_sparse(ids: npt.NDArray[np.integer | np.floating], weights: Float32Array) -> Float32Array:
    """Token ids [K], ascending, and their weights [K] as one row [2K]. ValueError for an id that is not exact."""
    if len(ids) and ids[-1] >= _EXACT:
        raise ValueError(f"the token id {int(ids[-1])} is not exact as a float32. This is a bug.")
    return np.concatenate((ids, weights), dtype=np.float32, casting="unsafe")


def split_sparse(row: Float32Array) -> tuple[Int32Array, Float32Array]:
    """The ids [K] and the weights [K] of a row [2K] of `embed_sparse`. ValueError for an odd length."""
    if len(row) % 2:
        raise ValueError(f"a sparse row has as many ids as weights, not {len(row)} values together.")
    count = len(row) // 2
    return row[:count].astype(np.int32), row[count:]


def join_vectors(dense: Float32Array, tokens: Float32Array, sparse: Float32Array) -> Float32Array:
    """The row of `embed_all`: the vector [D], the number of token vectors, these [n, token_dim], a sparse row [2K]."""
    return np.concatenate((dense, np.array([len(tokens)], np.float32), tokens.reshape(-1), sparse))


def split_vectors(row: Float32Array, dim: int, token_dim: int) -> tuple[Float32Array, Float32Array, Float32Array]:
    """The vector [dim], the token vectors [n, token_dim] and the sparse row [2K] of a row of `embed_all`.

    Views of `row`. ValueError for one that is not of these sizes.
    """
    if len(row) <= dim:
        raise ValueError(f"a row of {len(row)} values has no vector of {dim} and what follows it.")
    count = int(row[dim])
    start, end = dim + 1, dim + 1 + count * token_dim
    if count < 0 or end > len(row) or (len(row) - end) % 2:
        raise ValueError(f"a row of {len(row)} values does not hold {count} token vectors of {token_dim}.")
    return row[:dim], row[start:end].reshape(count, token_dim), row[end:]
