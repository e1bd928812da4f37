"""Launch of the fused embeddings (words, positions, types) and norm."""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import (
    index_of,
    kernel,
    multiprocessors,
    packed_norm,
    pointer,
    pointer_or_null,
    row_geometry,
)
from penstock.engine.model.weights import Embeddings


def embed_norm(
    out: Tensor, token_ids: Tensor, positions: Tensor, token_types: Tensor | None, embeddings: Embeddings
) -> None:
    """out = norm(words[token_ids] + positions[positions] + token types[token_types]), or the sum without a norm.

    out [R, H]; token_ids, positions, token_types int32 [R]; the tables and weights of `embeddings` all float16 or all
    bfloat16, H a multiple of 8 up to 8,192. Without token_types every row is of type 0; without a table of types,
    token_types are ignored. No aliasing. One launch.
    The caller has checked all ids against their tables. Raises ValueError for anything else.
    """
    dtype = out.dtype
    rows, hidden = out.shape
    geometry = row_geometry(rows, hidden, multiprocessors(index_of(out)))
    args = (
        pointer("out", out, dtype, (rows, hidden)),
        pointer("token_ids", token_ids, torch.int32, (rows,)),
        pointer("positions", positions, torch.int32, (rows,)),
        pointer_or_null("token_types", token_types, torch.int32, (rows,)),
        pointer("words", embeddings.words, dtype, (len(embeddings.words), hidden)),
        _table("positions", embeddings.positions, dtype, hidden),
        _table("token types", embeddings.token_types, dtype, hidden),
        packed_norm(embeddings.norm, dtype, hidden),
        rows,
        np.int32(hidden),
    )
    if rows:
        kernel("embed_norm", f"embed_norm_{geometry.entry}", out)(geometry.grid, geometry.block, args)


def _table(name: str, table: Tensor | None, dtype: torch.dtype, hidden: int) -> int:
    return 0 if table is None else pointer(name, table, dtype, (len(table), hidden))
