"""Rows of the engine, or of the cache, as the sparse vectors and the vectors of tokens of a reply."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.engine.types import Float32Array, ModelInfo
from penstock.engine.vector_rows import split_sparse, split_vectors
from penstock.producer.wire.messages import Options
from penstock.producer.wire.vector_tables import SparseTable, TokenVectorTable


def all_embeddings(results: Sequence[Float32Array], info: ModelInfo, options: Options) -> dict[str, Any]:
    """The fields of a reply to `embed_all`."""
    vectors, tokens, sparse = zip(*[split_vectors(row, info.dim, info.token_dim) for row in results], strict=True)
    return {
        "vectors": np.stack(vectors).astype(options.dtype, copy=False),
        "token_vectors": token_vectors(tokens, info, options),
        "sparse": sparse_table(sparse, options),
    }


def sparse_table(results: Sequence[Float32Array], options: Options) -> SparseTable:
    """Of the rows of `embed_sparse`. Of equal weights, those of the lower ids are among the largest."""
    rows = [split_sparse(row) for row in results]
    if options.top_k:
        kept = [np.sort(np.argsort(-weights, kind="stable")[: options.top_k]) for _, weights in rows]
        rows = [(ids[places], weights[places]) for (ids, weights), places in zip(rows, kept, strict=True)]
    return SparseTable(
        lens=tuple([len(ids) for ids, _ in rows]),
        ids=np.concatenate([ids for ids, _ in rows]).astype(np.uint32),
        weights=np.concatenate([weights for _, weights in rows]).astype(options.dtype, copy=False),
    )


def token_vectors(results: Sequence[Float32Array], info: ModelInfo, options: Options) -> TokenVectorTable:
    """Of the rows of `embed_tokens`, which come from the engine as [n, token_dim] and from the cache flat."""
    matrices = [row.reshape(-1, info.token_dim) for row in results]
    return TokenVectorTable(
        lens=tuple([len(matrix) for matrix in matrices]),
        matrix=np.concatenate(matrices).astype(options.dtype, copy=False),
    )
