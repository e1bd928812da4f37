"""A critical point: the highest rate at which a system keeps up and in time. Bisection, and longer runs to confirm."""

import math
from collections.abc import Callable
from typing import Any

from penstock.ops.bench.serving.loads.outcome import Outcome

_CHANCES = 2  # runs of the bisection at one rate: one stall of the host is all of a short run's p99
_PRECISION = 0.1
_REACH = 8.0  # times the first guess, to either side
_CONFIRM_TIMES = 2.0  # the usual length of a run
_CONFIRM_STEP, _MOST_CONFIRMED = 0.1, 5

Run = Callable[[float, float], Outcome]  # (requests a second, times the usual length of a run)


def critical_point(run: Run, guess_per_s: float, slo_s: float) -> dict[str, Any]:
    """Find the highest rate at which `run` keeps up, and its latencies there, as JSON values.

    A short run may keep up by chance at a rate that cannot be sustained. Longer runs confirm the rate, or move it.
    """
    tried: list[tuple[float, bool]] = []

    def keeps_up(rate: float) -> bool:
        is_kept_up = any(run(rate, 1.0).keeps_up(slo_s) for _ in range(_CHANCES))
        tried.append((rate, is_kept_up))
        return is_kept_up

    found = highest(keeps_up, guess_per_s, precision=_PRECISION, reach=_REACH)
    rate, outcome, was_sustained = _confirmed(run, found or guess_per_s / _REACH, slo_s)
    return {
        "found_per_s": found,
        "tried": tried,
        "rate_per_s": rate,
        "was_sustained": was_sustained,
        "offered_per_s": outcome.offered_per_s(),
        "answered_per_s": outcome.answered_per_s(0.5),
        "requests": len(outcome.arrival),
        "refused": dict(outcome.refused),
        "latency_s": outcome.latency_summary_s(),
    }


def highest(sustains: Callable[[float], bool], guess: float, *, precision: float, reach: float) -> float:
    """Find the highest sustained rate by bisection, to `precision`; 0.0 when guess / reach is not sustained either.

    Rates are tried from `guess` on, up or down in doublings and halvings, then between the two that enclose the limit.
    A system that sustains a rate is taken to sustain every lower one.
    """
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


def _confirmed(run: Run, guess_per_s: float, slo_s: float) -> tuple[float, Outcome, bool]:
    """Run at the guess, then at higher rates while they are sustained, or at lower ones until one is.

    Returns the rate, its run, and whether it was sustained: if not, every run failed, and this is the last.
    """
    rate, outcome = guess_per_s, run(guess_per_s, _CONFIRM_TIMES)
    is_up = outcome.keeps_up(slo_s)
    for _ in range(_MOST_CONFIRMED - 1):
        following = rate * (1 + _CONFIRM_STEP if is_up else 1 - _CONFIRM_STEP)
        candidate = run(following, _CONFIRM_TIMES)
        was_sustained = candidate.keeps_up(slo_s)
        if is_up and not was_sustained:
            break
        rate, outcome = following, candidate
        if was_sustained and not is_up:
            return rate, outcome, True
    return rate, outcome, is_up
