"""Predicted seconds of a batch, from sums over its lengths: what the partition policies minimise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Value = float | FloatArray  # one batch, or one value a batch


class CostFunction(Protocol):
    """Predicts run times. Called for every plan, so it must be cheap, pure and vectorised."""

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

    def seconds(self, tokens: Value, squares: Value, longest: Value, count: Value) -> Value:
        return self._price(tokens, squares)


@dataclass(frozen=True, slots=True)
class PaddedCost(_LaunchAndWork):
    """An engine that pads to the longest: f = max(floor, alpha + beta * max(L) * n + gamma * n * max(L)^2)."""

    def seconds(self, tokens: Value, squares: Value, longest: Value, count: Value) -> Value:
        padded = longest * count
        return self._price(padded, padded * longest)


def fit_packed_cost(samples: Sequence[tuple[Sequence[int], float]]) -> PackedCost:
    """Fit `PackedCost` to timings, each (lengths of the batch, measured seconds > 0).

    Least squares on relative errors, so that a 1 ms batch counts as much as a 100 ms one; no coefficient is negative.
    One sample gives seconds a token only, two or three also `alpha_s`, four or more also `gamma_s` and `floor_s`.
    Raises ValueError when there is no sample, or one that cannot be true.
    """
    if not samples:
        raise ValueError("fit_packed_cost needs at least one timing.")
    for lengths, seconds in samples:
        if not lengths or min(lengths) < 1 or not 0 < seconds < math.inf:
            raise ValueError(f"A timing needs lengths >= 1 and finite seconds > 0. Given: {list(lengths)}, {seconds}")
    features = np.array([(sum(lengths), 1, sum(n * n for n in lengths)) for lengths, _ in samples], dtype=np.float64)
    measured = np.array([seconds for _, seconds in samples], dtype=np.float64)
    if len(samples) < 4:
        return _fit(features[:, : min(2, len(samples))], measured, num_flat=0)[1]
    return min((_fit(features, measured, num_flat) for num_flat in range(len(samples) - 2)), key=lambda fit: fit[0])[1]


def _fit(features: FloatArray, measured: FloatArray, num_flat: int) -> tuple[float, PackedCost]:
    """(relative squared error, cost) when the floor alone explains the `num_flat` fastest timings."""
    order = np.argsort(measured, kind="stable")
    flat, steep = measured[order[:num_flat]], order[num_flat:]
    coefficients = _fit_non_negative(features[steep], measured[steep])
    # The constant with the least relative squared error over the flat part.
    floor = float(np.sum(1 / flat) / np.sum(1 / flat**2)) if num_flat else 0.0
    predicted = np.maximum(floor, features @ coefficients)
    beta, alpha, gamma = np.pad(coefficients, (0, 3 - len(coefficients))).tolist()
    return float(np.sum((predicted / measured - 1) ** 2)), PackedCost(floor, alpha, beta, gamma)


def _fit_non_negative(features: FloatArray, measured: FloatArray) -> FloatArray:
    """Coefficients >= 0, one a column, with the least relative squared error.

    At most three columns, so every support is tried: the optimum is the unconstrained fit of one of them.
    """
    relative = features / measured[:, None]
    scale = np.linalg.norm(relative, axis=0)
    relative /= scale
    best_error, best = math.inf, np.zeros(len(scale))
    supports = (s for size in range(len(scale)) for s in combinations(range(len(scale)), size + 1))
    for columns in map(list, supports):
        solution = np.linalg.lstsq(relative[:, columns], np.ones(len(measured)), rcond=None)[0]
        error = float(np.sum((relative[:, columns] @ solution - 1) ** 2))
        if error < best_error and np.all(solution >= 0):
            best_error, best = error, np.zeros(len(scale))
            best[columns] = solution / scale[columns]
    return best
