"""Predicted seconds of a batch, from sums over its lengths: what the partition policies minimise."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Value = float | FloatArray  # one batch, or one value a batch


class CostFunction(Protocol):
    """Predicts run times. Called for every poll, so it must be cheap, pure and vectorised."""

    @property
    def padded(self) -> bool:
        """Whether the engine pads every sequence of a batch to its longest, so that a batch takes longest * count."""
        ...

    def seconds(self, tokens: Value, squares: Value, longest: Value, count: Value) -> Value:
        """Seconds (finite, >= 0) of batches of `count` sequences with lengths L.

        `tokens` is sum(L), `squares` sum(L^2), `longest` max(L). Numbers give a number; arrays broadcast.
        """
        ...

    def lower_bound(self, tokens: float, squares: float, num_batches: int) -> float:
        """Seconds below which no partition of these sequences into `num_batches` or more batches can cost.

        Partitioning stops at FIFO when FIFO is already this cheap. 0.0 is always true, and always searches.
        """
        ...


@dataclass(frozen=True, slots=True)
class _LaunchAndWork:
    """max(floor, alpha + beta * tokens + gamma * squares): a launch-bound floor, then work linear in the sums."""

    floor_s: float  # seconds of the smallest batch
    alpha_s: float  # seconds a batch, whatever is in it
    beta_s: float  # seconds a token
    gamma_s: float  # seconds a squared token (attention)

    def __post_init__(self) -> None:
        for name in ("floor_s", "alpha_s", "beta_s", "gamma_s"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a finite number of seconds, 0 or more. Given: {value}")

    def lower_bound(self, tokens: float, squares: float, num_batches: int) -> float:
        """Every batch pays `alpha_s` and at least `floor_s`; padding only adds to the two sums."""
        work = num_batches * self.alpha_s + self.beta_s * tokens + self.gamma_s * squares
        return max(num_batches * self.floor_s, work)

    def _price(self, tokens: Value, squares: Value) -> Value:
        work = self.alpha_s + self.beta_s * tokens + self.gamma_s * squares
        if isinstance(work, np.ndarray):
            return np.maximum(self.floor_s, work)
        return max(self.floor_s, work)


@dataclass(frozen=True, slots=True)
class PackedCost(_LaunchAndWork):
    """An engine without padding: f = max(floor, alpha + beta * sum(L) + gamma * sum(L^2)).

    f(S + T) <= f(S) + f(T), so one batch is optimal wherever the caps allow one.
    """

    @property
    def padded(self) -> bool:
        return False

    def seconds(self, tokens: Value, squares: Value, longest: Value, count: Value) -> Value:
        return self._price(tokens, squares)


@dataclass(frozen=True, slots=True)
class PaddedCost(_LaunchAndWork):
    """An engine that pads to the longest: f = max(floor, alpha + beta * max(L) * n + gamma * n * max(L)^2)."""

    @property
    def padded(self) -> bool:
        return True

    def seconds(self, tokens: Value, squares: Value, longest: Value, count: Value) -> Value:
        padded = longest * count
        return self._price(padded, padded * longest)
