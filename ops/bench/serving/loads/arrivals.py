"""Arrival times, open loop: they do not depend on the answers. Same seed, same times."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def poisson(rate_per_s: float, count: int, seed: int) -> Floats:
    """`count` times in seconds from 0 on, ascending, with exponential gaps of mean 1 / rate_per_s."""
    _check(rate_per_s)
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, count))


@dataclass(frozen=True, slots=True)
class OnOff:
    """Poisson arrivals for `on_s`, then silence for `off_s`, and so on."""

    on_s: float
    off_s: float

    @property
    def period_s(self) -> float:
        return self.on_s + self.off_s

    @property
    def peak(self) -> float:
        """The rate in a burst over the mean rate."""
        return (self.on_s + self.off_s) / self.on_s


BURSTS = OnOff(on_s=0.2, off_s=0.8)


def bursty(rate_per_s: float, count: int, seed: int, shape: OnOff = BURSTS) -> Floats:
    """`count` times in seconds from 0 on, ascending, with a mean of `rate_per_s` over whole periods of `shape`."""
    _check(rate_per_s)
    while_on = poisson(rate_per_s * shape.peak, count, seed)
    return while_on + np.floor(while_on / shape.on_s) * shape.off_s


def _check(rate_per_s: float) -> None:
    if not 0 < rate_per_s < np.inf:
        raise ValueError(f"An arrival rate must be a finite number of requests a second above 0. Given: {rate_per_s}")
