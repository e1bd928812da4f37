"""Sequence lengths of the workloads. The same seed gives the same lengths on every machine."""

import numpy as np
import numpy.typing as npt

Lengths = npt.NDArray[np.int64]


def uniform(low: int, high: int, count: int, seed: int) -> Lengths:
    """`count` lengths in [low, high], both inclusive."""
    return np.random.default_rng(seed).integers(low, high + 1, count)


def around_mean(max_tokens: int, ratio: float, count: int, seed: int) -> Lengths:
    """Uniform lengths with a mean of `ratio` * max_tokens and as wide a range as [1, max_tokens] allows.

    At 0.6 that is [0.2 max, max], as ByteTransformer's own harness draws; its paper says from 1.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio is {ratio}, and must lie in (0, 1].")
    mean = max(1, round(ratio * max_tokens))
    low = max(1, 2 * mean - max_tokens)
    return uniform(low, 2 * mean - low, count, seed)


def filling(tokens: int, low: int, high: int, seed: int) -> Lengths:
    """Uniform lengths in [low, high] that add up to `tokens`; the last one is cut."""
    lengths = uniform(low, high, tokens, seed)
    lengths = lengths[: int(np.searchsorted(np.cumsum(lengths), tokens)) + 1]
    lengths[-1] -= lengths.sum() - tokens
    return lengths
