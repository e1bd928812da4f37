"""Arrival times, open loop: they do not depend on the answers. Same seed, same times."""

import numpy as np
import numpy.typing as npt


def poisson(rate_per_s: float, count: int, seed: int) -> npt.NDArray[np.float64]:
    """`count` times in seconds from 0 on, ascending, with exponential gaps of mean 1 / rate_per_s."""
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, count))
