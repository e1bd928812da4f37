"""Predicted seconds of a batch, from sums over its lengths: what the partition policies minimise."""

import math
from dataclasses import asdict, dataclass
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


class CostFunction(Protocol):
    """Predicts run times. Called for every poll, so it must be cheap and pure."""

    @property
    def padded(self) -> bool:
        """Whether the engine pads every sequence of a batch to its longest, so that a batch takes longest * count."""

    def seconds(self, tokens: float, squares: float, longest: float, count: float) -> float:
        """Seconds (finite, >= 0) of a batch with lengths L: their sum, sum of squares, maximum and count."""


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

    def seconds(self, tokens: float, squares: float, longest: float, count: float) -> float:
        if self.padded:
            tokens = longest * count
            squares = tokens * longest
        return max(self.floor_s, self.alpha_s + self.beta_s * tokens + self.gamma_s * squares)


@dataclass(frozen=True, slots=True)
class PaddedCost(PackedCost):
    """An engine that pads to the longest: f = max(floor, alpha + beta * max(L) * n + gamma * n * max(L)^2)."""

    padded: ClassVar[bool] = True


def predicted_s(cost: CostFunction, tokens: float, squares: float, longest: float, count: float) -> float:
    """Seconds of one batch. ValueError when the cost function gives no finite number, 0 or more."""
    seconds = cost.seconds(tokens, squares, longest, count)
    if not 0 <= seconds < math.inf:
        raise ValueError(f"A cost function must give finite seconds, 0 or more. It gave: {seconds}")
    return seconds
