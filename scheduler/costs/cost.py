"""Predicted seconds of a batch, from sums over its lengths: what the partition policies minimise."""

import math
from dataclasses import asdict, dataclass
from typing import ClassVar, Protocol

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


@dataclass(frozen=True, slots=True)
class PackedCost:
    """An engine without padding: max(floor, alpha + beta * sum(L) + gamma * sum(L^2)).

    f(S + T) <= f(S) + f(T), so one batch is optimal wherever the caps allow one.
    """

    padded: ClassVar[bool] = False

    floor_s: float  # seconds of the smallest batch
    alpha_s: float  # seconds a batch, whatever is in it
    beta_s: float  # seconds a token
    gamma_s: float  # seconds a squared token (attention)

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} must be a finite number of seconds, 0 or more. Given: {value}")

    def seconds(self, tokens: Value, squares: Value, longest: Value, count: Value) -> Value:
        if self.padded:
            tokens = longest * count
            squares = tokens * longest
        work = self.alpha_s + self.beta_s * tokens + self.gamma_s * squares
        return np.maximum(self.floor_s, work) if isinstance(work, np.ndarray) else max(self.floor_s, work)


@dataclass(frozen=True, slots=True)
class PaddedCost(PackedCost):
    """An engine that pads to the longest: f = max(floor, alpha + beta * max(L) * n + gamma * n * max(L)^2)."""

    padded: ClassVar[bool] = True


def predicted_s(cost: CostFunction, tokens: float, squares: float, longest: float, count: float) -> float:
    """Seconds of one batch. ValueError when the cost function gives no finite number, 0 or more."""
    seconds = float(cost.seconds(tokens, squares, longest, count))
    if not 0 <= seconds < math.inf:
        raise ValueError(f"A cost function must give finite seconds, 0 or more. It gave: {seconds}")
    return seconds
