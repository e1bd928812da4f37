"""Search for the highest rate that a system sustains."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


def highest(sustains: Callable[[float], bool], guess: float, *, precision: float = 0.02, reach: float = 64.0) -> float:
    """Find the highest sustained rate by bisection, to `precision`; 0.0 when guess / reach is not sustained either.

    Rates are tried from `guess` on, up or down in doublings and halvings, then between the two that enclose the limit.
    A system that sustains a rate is taken to sustain every lower one.
    """
    if not 0 < guess < math.inf:
        raise ValueError(f"A first guess must be a finite rate above 0. Given: {guess}")
    low = high = guess
    if sustains(guess):
        while high < guess * reach:
            low, high = high, high * 2
            if not sustains(high):
                break
        else:
            return high
    else:
        while low > guess / reach:
            high, low = low, low / 2
            if sustains(low):
                break
        else:
            return 0.0
    while high / low > 1 + precision:
        middle = math.sqrt(low * high)
        if sustains(middle):
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class Confirmed(Generic[T]):
    """The result of a few real trials at a rate that was found elsewhere."""

    rate: float
    trial: T
    was_sustained: bool  # False: every trial failed, and this is the last


def confirm(
    run: Callable[[float], T], sustained: Callable[[T], bool], guess: float, *, step: float = 0.07, most: int = 3
) -> Confirmed[T]:
    """Run at `guess`, then at higher rates while they are sustained, or at lower ones until one is; `most` runs."""
    rate, trial = guess, run(guess)
    is_up = sustained(trial)
    for _ in range(most - 1):
        following = rate * (1 + step) if is_up else rate * (1 - step)
        candidate = run(following)
        succeeded = sustained(candidate)
        if is_up and not succeeded:
            break
        rate, trial = following, candidate
        if not is_up and succeeded:
            return Confirmed(rate, trial, True)
    return Confirmed(rate, trial, is_up)
