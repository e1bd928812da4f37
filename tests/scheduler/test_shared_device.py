"""Members that share a device, start and stop: predictions follow, and the whole answers what the device can."""

from functools import cache

import pytest

from penstock.scheduler import CostTable, PackedCost, SchedulerSettings
from tests.scheduler.shared_device import Report, SharedDevice, Sharing, poisson
from tests.scheduler.simulation import saturation

COST = PackedCost(floor_s=1e-3, alpha_s=5e-4, beta_s=3.7e-6, gamma_s=0.0)  # 5,000 sequences of 51 tokens a second
SETTINGS = SchedulerSettings(0.002, 256, 4096, 0.1)
SATURATION = saturation(COST, 51, SETTINGS)
STEP_S = 2.0
STEPS = (1, 2, 4, 3, 1)  # members, for STEP_S each
SETTLED_S = 0.5  # after a step: eight batches of a member that has four times the time


@cache
def run(load: float, steps: tuple[int, ...], sharing: Sharing) -> Report:
    device = SharedDevice(
        CostTable(COST), SETTINGS, lambda now: steps[min(len(steps) - 1, int(now / STEP_S))], sharing=sharing
    )
    return device.run(poisson(load * SATURATION, STEP_S * len(steps), seed=1))


def is_settled(at: float) -> bool:
    return at % STEP_S >= SETTLED_S


@pytest.mark.slow
@pytest.mark.parametrize("num_members", [1, 2, 4])
@pytest.mark.parametrize("load", [0.9, 2.0])
@pytest.mark.parametrize("sharing", ["turns", "equal"])
def test_members_that_are_always_busy_predict_their_batches(load: float, num_members: int, sharing: Sharing) -> None:
    report = run(load, (num_members,), sharing)
    assert report.p95_error(is_settled) <= 0.15
    assert report.goodput(SETTLED_S, STEP_S) >= 0.93 * min(1.0, load) * SATURATION
    assert report.broken_share(SETTLED_S) <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize("num_members", [2, 4])
def test_under_overload_the_wait_for_a_turn_is_predicted_as_well(num_members: int) -> None:
    assert run(2.0, (num_members,), "turns").p95_error(is_settled, lane=True) <= 0.15
    assert run(2.0, STEPS, "turns").p95_error(is_settled, lane=True) <= 0.15


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["turns", "equal"])
def test_below_saturation_no_admitted_request_is_late_when_members_start_and_stop(sharing: Sharing) -> None:
    report = run(0.9, STEPS, sharing)
    assert report.p95_error(lambda at: True) <= 0.15  # the steps among them
    assert report.broken_share() <= 0.001
    assert len(report.rejected) <= 0.001 * len(report.answered)


@pytest.mark.slow
@pytest.mark.parametrize("sharing", ["turns", "equal"])
def test_in_overload_predictions_follow_a_step_and_goodput_stays(sharing: Sharing) -> None:
    """A request that was admitted just before a step was promised more of the device than its member then has."""
    report = run(2.0, STEPS, sharing)
    assert report.p95_error(is_settled) <= 0.15
    assert report.goodput(SETTLED_S, STEP_S * len(STEPS)) >= 0.9 * SATURATION
    assert report.broken_share() <= 0.08


@pytest.mark.slow
def test_in_turns_no_start_or_stop_shows_in_the_seconds_of_the_device() -> None:
    """In time slices they scatter with the batches that a batch meets."""
    for load in (0.9, 2.0):
        assert run(load, STEPS, "turns").p95_error(lambda at: True) <= 0.08
        assert run(load, STEPS, "slices").p95_error(lambda at: True) > 0.15


@pytest.mark.slow
def test_a_hand_over_costs_no_more_than_its_time() -> None:
    """The device is idle for 0.2 ms between two members' batches, which take 6 ms where four members share 100 ms."""
    device = SharedDevice(CostTable(COST), SETTINGS, lambda now: 4, sharing="turns", hand_over_s=0.0002)
    report = device.run(poisson(2 * SATURATION, STEP_S, seed=1))
    assert report.goodput(SETTLED_S, STEP_S) >= 0.92 * SATURATION
    assert report.broken_share(SETTLED_S) <= 0.02


@pytest.mark.slow
def test_time_slices_cost_neither_goodput_nor_promises() -> None:
    """Predictions scatter with the slices that a batch meets: nothing is stated of their error."""
    for load in (0.9, 2.0):
        report = run(load, (4,), "slices")
        assert report.goodput(SETTLED_S, STEP_S) >= 0.9 * min(1.0, load) * SATURATION
        assert report.broken_share(SETTLED_S) <= 0.02
