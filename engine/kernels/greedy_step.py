"""Launch of the step of greedy search that follows a pass of the decoder."""

import numpy as np
import torch
from torch import Tensor

from penstock.engine.kernels.library import kernel, pointer, pointer_or_null

MAX_ENDS = 8  # end tokens of a request, as in greedy_step.cu
_THREADS = 128  # of a block


def greedy_step(
    terms: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
    ends: Tensor,
    state: tuple[Tensor, Tensor, Tensor],
    following: tuple[Tensor, Tensor, Tensor, Tensor],
    results: Tensor,
    column: int,
    found: tuple[Tensor, Tensor] | None,
    operand: Tensor,
) -> None:
    """Add a token to each request that runs, and describe the next pass. One launch, nothing allocated.

    N requests; all int32 [N] and contiguous where nothing else is said. terms: max_new, min_new, forced_first,
    forced_last, bans, source_length. ends [N, MAX_ENDS]: end tokens; -1 for none. state: status, length, and last [N,
    1], all of which change. following: positions, lengths, source lengths and rows of bans of the next pass. results
    [N, any]: column 0 becomes the status, `column` the token that was added; -1 for none. found: values float32 and
    tokens [N, 1], as of `candidates`; None: there was no pass, and only the next one is described. operand: a tensor
    on the device, of a type that there are kernels for. Raises ValueError for other shapes or types.
    """
    status, length, last = state
    rows = len(status)
    values, tokens = found or (None, None)
    args = (
        *(pointer("terms", one, torch.int32, (rows,)) for one in terms),
        pointer("ends", ends, torch.int32, (rows, MAX_ENDS)),
        pointer("status", status, torch.int32, (rows,)),
        pointer("length", length, torch.int32, (rows,)),
        pointer("last", last, torch.int32, (rows, 1)),
        *(pointer("following", one, torch.int32, (rows,)) for one in following),
        pointer("results", results, torch.int32, (rows, results.shape[1])),
        np.int32(results.shape[1]),
        np.int32(column),
        pointer_or_null("values", values, torch.float32, (rows, 1)),
        pointer_or_null("tokens", tokens, torch.int32, (rows, 1)),
        np.int32(rows),
    )
    if rows:
        kernel("greedy_step", "greedy_step", operand)((-(-rows // _THREADS),), (_THREADS,), args)
