"""Arrival times, open loop: they do not depend on the answers. Same seed, same times."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

ON_S, PERIOD_S = 0.2, 1.0  # of bursts: arrivals for ON_S at five times the mean, then silence to the end of the period


def poisson(rate_per_s: float, count: int, seed: int) -> Floats:
    """`count` times in seconds from 0 on, ascending, with exponential gaps of mean 1 / rate_per_s."""
    if not 0 < rate_per_s < np.inf:
        raise ValueError(f"An arrival rate must be a finite number of requests a second above 0. Given: {rate_per_s}")
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, count))


def bursty(rate_per_s: float, count: int, seed: int) -> Floats:
    """`count` times in seconds from 0 on, ascending, with a mean of `rate_per_s` over whole periods of bursts."""
    while_on = poisson(rate_per_s * PERIOD_S / ON_S, count, seed)
    return while_on + np.floor(while_on / ON_S) * (PERIOD_S - ON_S)
