"""Each trigger at its exact boundary. Times are binary fractions, so that a boundary is one number and not a range."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduler import Hungry, Lazy, Trigger
from penstock.scheduler.queue import QueueSummary

LAZY = Lazy(max_wait_s=0.25, max_batch_sequences=8, max_batch_tokens=100, slo_s=1.0)


def queue(num_jobs: int = 2, tokens: int = 20, oldest: float = 10.0, half_deadline: float = math.inf) -> QueueSummary:
    return QueueSummary(num_jobs, tokens, 200, 10, oldest, half_deadline)


@pytest.mark.parametrize(
    ("waiting", "now", "run_s", "decision"),
    [
        pytest.param(queue(), 10.0, 0.0, 10.25, id="waits for its timeout"),
        pytest.param(queue(), 10.25, 0.0, Trigger.TIMEOUT, id="timeout at the very moment"),
        pytest.param(queue(), 10.25 - 2**-20, 0.0, 10.25, id="not a microsecond early"),
        pytest.param(queue(num_jobs=7), 10.0, 0.0, 10.25, id="one sequence short of a batch"),
        pytest.param(queue(num_jobs=8), 10.0, 0.0, Trigger.MAX_BATCH, id="full by count"),
        pytest.param(queue(tokens=99), 10.0, 0.0, 10.25, id="one token short of a batch"),
        pytest.param(queue(tokens=100), 10.0, 0.0, Trigger.MAX_BATCH, id="full by tokens"),
        pytest.param(queue(num_jobs=8), 99.0, 9.0, Trigger.MAX_BATCH, id="full comes before late"),
        pytest.param(queue(), 10.0, 0.375, 10.125, id="waits for age + run = half the SLO"),
        pytest.param(queue(), 10.125, 0.375, Trigger.HALF_SLO, id="half the SLO at the very moment"),
        pytest.param(queue(), 10.125 - 2**-20, 0.375, 10.125, id="half the SLO not yet"),
        pytest.param(queue(), 10.0, 0.5, Trigger.HALF_SLO, id="the run alone takes half the SLO"),
        pytest.param(queue(), 10.25, 0.25, Trigger.TIMEOUT, id="both at once is a timeout"),
        pytest.param(queue(half_deadline=10.125), 10.0, 0.0625, 10.0625, id="a deadline tighter than the SLO"),
        pytest.param(queue(half_deadline=10.125), 10.0625, 0.0625, Trigger.HALF_SLO, id="that deadline's moment"),
        pytest.param(queue(half_deadline=99.0), 10.125, 0.375, Trigger.HALF_SLO, id="a late deadline relaxes nothing"),
        pytest.param(queue(half_deadline=5.0), 10.0, 0.0, Trigger.HALF_SLO, id="a deadline that passed before arrival"),
    ],
)
def test_lazy(waiting: QueueSummary, now: float, run_s: float, decision: Trigger | float) -> None:
    assert LAZY.decide(waiting, now, run_s) == decision


def test_hungry_never_waits() -> None:
    assert Hungry().decide(queue(num_jobs=1, tokens=1), 10.0, 0.0) is Trigger.HUNGRY


@given(st.floats(0, 1e9), st.floats(0, 1), st.floats(0, 1), st.floats(0.001, 60))
def test_lazy_fires_at_the_time_it_names(oldest: float, run_s: float, max_wait_s: float, slo_s: float) -> None:
    """Rounding must not make a caller that wakes at the named time wait for that same time again."""
    lazy = Lazy(max_wait_s, 8, 100, slo_s)
    decision = lazy.decide(queue(oldest=oldest), oldest, run_s)
    if not isinstance(decision, Trigger):
        assert decision > oldest
        assert isinstance(lazy.decide(queue(oldest=oldest), decision, run_s), Trigger)
