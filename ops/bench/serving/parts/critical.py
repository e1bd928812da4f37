"""A critical point found by real runs alone: bisection, and then longer runs that confirm what it found."""

from collections.abc import Callable
from typing import Any

from penstock.ops.bench.serving.loads.outcome import Outcome
from penstock.ops.bench.serving.parts.rate_search import confirm, highest

_CONFIRM_TIMES = 2.0  # the usual length of a run
_CONFIRM_STEP, _MOST_CONFIRMED = 0.1, 5
_CHANCES = 2  # runs of the bisection at one rate: one stall of the host is all of a short run's p99
_PRECISION = 0.1
_REACH = 8.0  # times the first guess, to either side

Run = Callable[[float, float], Outcome]  # (requests a second, times the usual length of a run)
Row = dict[str, Any]


def critical_point(run: Run, guess_per_s: float, slo_s: float) -> Row:
    """Find the highest rate at which `run` keeps up, and its latencies there, as JSON values.

    A short run may keep up by chance at a rate that cannot be sustained. Longer runs confirm the rate, or move it.
    """
    tried: list[tuple[float, bool]] = []

    def keeps_up(rate: float) -> bool:
        is_kept_up = any(run(rate, 1.0).keeps_up(slo_s) for _ in range(_CHANCES))
        tried.append((rate, is_kept_up))
        return is_kept_up

    found = highest(keeps_up, guess_per_s, precision=_PRECISION, reach=_REACH)
    confirmed = confirm(
        lambda rate: run(rate, _CONFIRM_TIMES),
        lambda outcome: outcome.keeps_up(slo_s),
        found or guess_per_s / _REACH,
        step=_CONFIRM_STEP,
        most=_MOST_CONFIRMED,
    )
    outcome = confirmed.trial
    return {
        "found_per_s": found,
        "tried": tried,
        "rate_per_s": confirmed.rate,
        "was_sustained": confirmed.was_sustained,
        "offered_per_s": outcome.offered_per_s(),
        "answered_per_s": outcome.answered_per_s(0.5),
        "requests": outcome.num_requests,
        "refused": dict(outcome.refused),
        "latency_s": outcome.latency_summary_s(),
    }
