"""Launch of the search for the most likely tokens of each row of logits."""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import VECTOR, kernel, pointer

SIZES = (1, 8, 16, 32)  # candidates of a row that there are kernels for
_THREADS = 256  # of a block, as in candidates.cu


def candidates(
    values: Tensor,
    tokens: Tensor,
    logits: Tensor,
    vocabulary: int,
    bans: Tensor,
    ban_rows: Tensor,
    renormalize: Tensor,
) -> None:
    """The greatest log-probabilities of each row, greatest first, and their tokens. One launch, nothing allocated.

    values float32, tokens int32 [R, K], K one of SIZES; logits [R, C] float16 or bfloat16, C a multiple of 8, tokens in
    the first `vocabulary` columns. bans uint8 [any, C / 8]: bit j of byte i is set where token 8 i + j is banned;
    ban_rows int32 [R]: row of `bans` of each row. renormalize int32 [R]: where it is not 0, probabilities are of the
    tokens that are not banned. Places for which no token is left hold -inf and token 0; rows with a NaN hold NaN.
    Raises ValueError for other shapes, types or alignment.
    """
    (rows, size), stride = values.shape, logits.shape[1]
    if size not in SIZES or stride % VECTOR or not 0 < vocabulary <= stride:
        raise ValueError(f"no kernel for {size} candidates of {vocabulary} tokens in rows of {stride}")
    args = (
        pointer("values", values, torch.float32, (rows, size)),
        pointer("tokens", tokens, torch.int32, (rows, size)),
        pointer("logits", logits, logits.dtype, (rows, stride)),
        np.int32(stride),
        np.int32(vocabulary),
        pointer("bans", bans, torch.uint8, (len(bans), stride // VECTOR)),
        pointer("ban_rows", ban_rows, torch.int32, (rows,)),
        pointer("renormalize", renormalize, torch.int32, (rows,)),
    )
    if rows:
        kernel("candidates", f"candidates_{size}", logits)((rows,), (_THREADS,), args)
