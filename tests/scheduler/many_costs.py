"""Costs of many batches at once, written apart from the scheduler's own: what the proofs compare it with."""

import numpy as np
import numpy.typing as npt

from penstock.scheduler import CostFunction, CostTable, LearnedCost, PackedCost

Floats = npt.NDArray[np.float64]
Value = float | Floats


def many_seconds(cost: CostFunction, tokens: Value, squares: Value, longest: Value, count: Value) -> Floats:
    """Seconds of batches, by numpy: the law, times weights of the knots on either side. Arrays broadcast."""
    if isinstance(cost, LearnedCost):
        return cost.scale * many_seconds(cost.table, tokens, squares, longest, count)
    law = cost.base if isinstance(cost, CostTable) else cost
    assert isinstance(law, PackedCost)
    size = count if cost.padded else tokens
    if cost.padded:
        tokens, squares = longest * count, longest * longest * count
    seconds: Floats = np.maximum(law.floor_s, law.alpha_s + law.beta_s * tokens + law.gamma_s * squares)
    if isinstance(cost, CostTable):
        by_size = np.stack([np.interp(size, cost.sizes, row) for row in np.eye(len(cost.sizes))])
        by_length = np.stack([np.interp(longest, cost.lengths, row) for row in np.eye(len(cost.lengths))])
        seconds = seconds * np.einsum("i...,ij,j...->...", by_size, np.array(cost.factors), by_length)
    return seconds
