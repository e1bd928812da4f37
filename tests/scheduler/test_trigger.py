"""Each trigger at its exact boundary. Times are binary fractions, so that a boundary is one number and not a range."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduler import Trigger
from penstock.scheduler.policies.trigger import TRIGGERS, Outlook, lazy

MAX_WAIT_S = 0.25


def waiting(
    run_s: float = 0.0, half_slo_at: float = 10.5, *, is_full: bool = False, oldest_arrival: float = 10.0
) -> Outlook:
    return Outlook(is_full, oldest_arrival, half_slo_at, run_s)


@pytest.mark.parametrize(
    ("outlook", "now", "decision"),
    [
        pytest.param(waiting(), 10.0, 10.25, id="waits for its timeout"),
        pytest.param(waiting(), 10.25, Trigger.TIMEOUT, id="timeout at the very moment"),
        pytest.param(waiting(), 10.25 - 2**-20, 10.25, id="not a microsecond early"),
        pytest.param(waiting(is_full=True), 10.0, Trigger.MAX_BATCH, id="full"),
        pytest.param(waiting(9.0, is_full=True), 99.0, Trigger.MAX_BATCH, id="full comes before late"),
        pytest.param(waiting(0.375), 10.0, 10.125, id="waits for age + run = half the SLO"),
        pytest.param(waiting(0.375), 10.125, Trigger.HALF_SLO, id="half the SLO at the very moment"),
        pytest.param(waiting(0.375), 10.125 - 2**-20, 10.125, id="half the SLO not yet"),
        pytest.param(waiting(0.5), 10.0, Trigger.HALF_SLO, id="the run alone takes half the SLO"),
        pytest.param(waiting(0.25), 10.25, Trigger.TIMEOUT, id="both at once is a timeout"),
        pytest.param(waiting(0.0625, 10.125), 10.0, 10.0625, id="a tighter deadline"),
        pytest.param(waiting(0.0625, 10.125), 10.0625, Trigger.HALF_SLO, id="that deadline's moment"),
        pytest.param(waiting(0.0, 5.0), 10.0, Trigger.HALF_SLO, id="half was used before it came"),
        pytest.param(waiting(5.0, math.inf), 10.0, 10.25, id="no deadline"),
    ],
)
def test_lazy(outlook: Outlook, now: float, decision: Trigger | float) -> None:
    assert lazy(outlook, now, MAX_WAIT_S) == decision


def test_hungry_never_waits() -> None:
    assert TRIGGERS["hungry"](waiting(), 10.0, MAX_WAIT_S) is Trigger.HUNGRY


@given(st.floats(0, 1e9), st.floats(0, 1), st.floats(0, 1), st.floats(0.001, 60))
def test_lazy_fires_at_the_time_it_names(oldest: float, run_s: float, max_wait_s: float, slo_s: float) -> None:
    """Rounding must not make a caller that wakes at the named time wait for that same time again."""
    outlook = waiting(run_s, oldest + slo_s / 2, oldest_arrival=oldest)
    decision = lazy(outlook, oldest, max_wait_s)
    if not isinstance(decision, Trigger):
        assert decision > oldest
        assert isinstance(lazy(outlook, decision, max_wait_s), Trigger)
