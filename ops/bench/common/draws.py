"""Sequence lengths and arrival times of the workloads. The same seed gives the same ones on every machine."""

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.int64]


def uniform(low: int, high: int, count: int, seed: int) -> Lengths:
    """`count` lengths in [low, high], both inclusive."""
    return np.random.default_rng(seed).integers(low, high + 1, count)


def filling(tokens: int, low: int, high: int, seed: int) -> Lengths:
    """Uniform lengths in [low, high] that add up to `tokens`; the last one is cut."""
    lengths = uniform(low, high, tokens, seed)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), tokens)) + 1]
    lengths[-1] -= lengths.sum() - tokens
    return lengths


def poisson(rate_per_s: float, count: int, seed: int) -> npt.NDArray[np.float64]:
    """`count` times in seconds from 0 on, ascending, with exponential gaps of mean 1 / rate_per_s.

    They do not depend on the answers: an open loop.
    """
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, count))
