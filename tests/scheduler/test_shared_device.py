"""Members that share a device, start and stop: predictions follow, and the whole answers what the device can."""

import pytest

from penstock.scheduler import CostTable, PackedCost, SchedulerSettings
from tests.scheduler.shared_device import Report, SharedDevice, poisson
from tests.scheduler.simulation import saturation

COST = PackedCost(floor_s=1e-3, alpha_s=5e-4, beta_s=3.7e-6, gamma_s=0.0)  # 5,000 sequences of 51 tokens a second
SETTINGS = SchedulerSettings(0.002, 256, 4096, 0.1)
SATURATION = saturation(COST, 51, SETTINGS)
STEP_S = 2.0
STEPS = (1, 2, 4, 3, 1)  # members, for STEP_S each
SETTLED_S = 0.5  # after a step: eight batches of a member that has four times the time


def run(load: float, steps: tuple[int, ...], *, slice_s: float = 0.0) -> Report:
    device = SharedDevice(
        CostTable(COST), SETTINGS, lambda now: steps[min(len(steps) - 1, int(now / STEP_S))], slice_s=slice_s
    )
    return device.run(poisson(load * SATURATION, STEP_S * len(steps), seed=1))


def is_settled(at: float) -> bool:
    return at % STEP_S >= SETTLED_S


@pytest.mark.slow
@pytest.mark.parametrize("num_members", [1, 2, 4])
@pytest.mark.parametrize("load", [0.9, 2.0])
def test_members_that_are_always_busy_predict_their_share_of_the_device(load: float, num_members: int) -> None:
    report = run(load, (num_members,))
    assert report.p95_error(is_settled) <= 0.15
    assert report.goodput(SETTLED_S, STEP_S) >= 0.93 * min(1.0, load) * SATURATION
    assert report.broken_share(SETTLED_S) <= 0.01


@pytest.mark.slow
def test_below_saturation_no_admitted_request_is_late_when_members_start_and_stop() -> None:
    report = run(0.9, STEPS)
    assert report.p95_error(lambda at: True) <= 0.15  # the steps among them
    assert report.broken_share() <= 0.001
    assert len(report.rejected) <= 0.001 * len(report.answered)


@pytest.mark.slow
def test_in_overload_predictions_follow_a_step_and_goodput_stays() -> None:
    """A request that was admitted just before a step was promised more of the device than its member then has."""
    report = run(2.0, STEPS)
    assert report.p95_error(is_settled) <= 0.15
    assert report.goodput(SETTLED_S, STEP_S * len(STEPS)) >= 0.9 * SATURATION
    assert report.broken_share() <= 0.08


@pytest.mark.slow
def test_turns_on_the_device_cost_neither_goodput_nor_promises() -> None:
    """Predictions scatter with the turns that a batch meets: nothing is stated of their error."""
    for load in (0.9, 2.0):
        report = run(load, (4,), slice_s=0.002)
        assert report.goodput(SETTLED_S, STEP_S) >= 0.9 * min(1.0, load) * SATURATION
        assert report.broken_share(SETTLED_S) <= 0.02
