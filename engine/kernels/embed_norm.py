"""Launch of the fused embeddings (words, positions, types) and LayerNorm."""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import index_of, kernel, multiprocessors, pointer, pointer_or_null, row_geometry


def embed_norm(
    out: Tensor,
    token_ids: Tensor,
    positions: Tensor,
    token_types: Tensor | None,
    words: Tensor,
    position_table: Tensor | None,
    type_table: Tensor | None,
    gamma: Tensor,
    beta: Tensor | None,
    eps: float,
) -> None:
    """out = LayerNorm(words[token_ids] + position_table[positions] + type_table[token_types]) * gamma + beta.

    out [R, H]; token_ids, positions, token_types int32 [R]; words [V, H], position_table [P, H], type_table [K, H],
    gamma, beta [H]: all float16 or all bfloat16, H a multiple of 8 up to 8,192. Without token_types every row is of
    type 0; without a type table, token_types are ignored. No aliasing. One launch.
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
        pointer("words", words, dtype, (len(words), hidden)),
        _table("position_table", position_table, dtype, hidden),
        _table("type_table", type_table, dtype, hidden),
        pointer("gamma", gamma, dtype, (hidden,)),
        pointer_or_null("beta", beta, dtype, (hidden,)),
        rows,
        np.int32(hidden),
        np.float32(eps),
    )
    if rows:
        kernel("embed_norm", f"embed_norm_{geometry.entry}", out)(geometry.grid, geometry.block, args)


def _table(name: str, table: Tensor | None, dtype: torch.dtype, hidden: int) -> int:
    return 0 if table is None else pointer(name, table, dtype, (len(table), hidden))
