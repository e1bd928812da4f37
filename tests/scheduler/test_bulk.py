"""Bulk work uses the capacity that online work leaves, within a bound on online latency."""

import math
import random
from collections.abc import Callable

import pytest

from penstock.scheduler import Batch, Job, PackedCost, PaddedCost, Plan, Scheduler, SchedulerSettings, Trigger, Wait
from penstock.scheduler.settings import PartitionName, TriggerName
from tests.scheduler.integrity import check_scheduler
from tests.scheduler.jobs import one_job
from tests.scheduler.simulation import Simulation, poisson, saturation

COST = PackedCost(floor_s=1e-3, alpha_s=5e-4, beta_s=3.7e-6, gamma_s=0.0)
PADDED = PaddedCost(floor_s=1e-3, alpha_s=5e-4, beta_s=3.7e-6, gamma_s=0.0)
CPU = PackedCost(floor_s=0.0, alpha_s=1e-3, beta_s=4e-5, gamma_s=0.0)
PADDED_CPU = PaddedCost(floor_s=0.0, alpha_s=1e-3, beta_s=4e-5, gamma_s=0.0)
FLOOR = 2**-8
STEP = PackedCost(floor_s=FLOOR, alpha_s=0.0, beta_s=2**-12, gamma_s=0.0)  # up to 16 tokens cost no more than one


def limits(trigger: TriggerName = "lazy", **change: float) -> SchedulerSettings:
    return SchedulerSettings(0.002, 256, 4096, 0.1, trigger, **change)  # type: ignore[arg-type]  # numbers of the test


def bulk(*lengths: int, first_id: int = 100, arrival: float = 10.0) -> list[Job]:
    return [one_job(first_id + index, length, arrival, bulk=True) for index, length in enumerate(lengths)]


def plan(decision: Plan | Wait | None) -> Plan:
    assert isinstance(decision, Plan)
    return decision


@pytest.mark.slow
@pytest.mark.parametrize(("trigger", "load"), [("lazy", 0.02), ("hungry", 0.5), ("lazy", 0.8), ("hungry", 0.9)])
def test_saturating_bulk_raises_onlines_p99_by_two_ms_at_most(trigger: TriggerName, load: float) -> None:
    chance = random.Random(5)
    chosen = limits(trigger)
    rate = load * saturation(COST, 51, chosen)
    seconds = 1.0 if load > 0.1 else 4.0
    without = Simulation(chosen, COST).run(poisson(rate, seconds))
    beside = Simulation(chosen, COST, endless_bulk=lambda: chance.randint(5, 200)).run(poisson(rate, seconds))
    assert beside.quantile(0.99) <= without.quantile(0.99) + max(0.002, 0.1 * without.quantile(0.99))
    # Every online request is answered, and bulk work goes on.
    assert len(beside.answered) == len(without.answered)
    idle_tokens = (1 - load) * saturation(COST, 51, chosen) * 51 * seconds
    assert beside.bulk_tokens >= 0.1 * idle_tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lanes", "cost", "noise", "load"),  # each value beside each of the others
    [
        (1, COST, 0.0, 0.7),
        (2, COST, 0.2, 0.2),
        (1, PADDED, 0.0, 0.7),
        (2, PADDED, 0.2, 0.2),
        (1, CPU, 0.2, 0.2),
        (2, CPU, 0.0, 0.7),
        (1, PADDED_CPU, 0.2, 0.7),
        (2, PADDED_CPU, 0.0, 0.2),
    ],
)
def test_a_bulk_sequence_longer_than_its_half_of_the_slice_is_all_that_comes_on_top(
    lanes: int, cost: PackedCost | PaddedCost, noise: float, load: float
) -> None:
    """Bulk adds half a slice to the job's own batch, and half a slice or one sequence to the batch before it.

    Both are bounded as predicted, so the error of predictions comes on top.

    The longest bulk sequence takes 1.2 ms, and 9 ms where the costs are a CPU's.
    """
    chance, longest = random.Random(5), 200
    partition: PartitionName = "dp" if cost.padded else "fifo"
    chosen = SchedulerSettings(0.002, 256, 4096, 1.0, "hungry", partition, num_lanes=lanes)
    rate = load * saturation(cost, 51, chosen)
    seconds = 2000 / rate

    def run_s(seed: int) -> Callable[[float], float]:
        noisy = random.Random(seed)
        return lambda predicted_s: predicted_s * noisy.uniform(1 - noise, 1 + noise)

    without = Simulation(chosen, cost, run_s=run_s(9)).run(poisson(rate, seconds))
    beside = Simulation(chosen, cost, run_s=run_s(9), endless_bulk=lambda: chance.randint(5, longest)).run(
        poisson(rate, seconds)
    )
    half_s = chosen.bulk_slice_s / 2
    longest_s = float(cost.seconds(longest, longest**2, longest, 1))
    allowed_s = (1 + noise) * (half_s + max(half_s, longest_s))
    assert beside.quantile(0.99) <= without.quantile(0.99) + max(allowed_s, 0.1 * without.quantile(0.99))
    assert len(beside.answered) == len(without.answered)
    assert beside.bulk_tokens > 0


@pytest.mark.slow
@pytest.mark.parametrize(("load", "bulk_per_s"), [(0.3, 2000), (0.45, 1000)])
def test_what_the_host_adds_is_no_reason_to_wait_longer_for_bulk(load: float, bulk_per_s: float) -> None:
    """Batches end 0.8 ms and half their time later than predicted, as on a fast device beside a busy event loop.

    The bound is half of the slice. The other half allows for delays that are not simulated.
    """
    chance = random.Random(5)
    cost = PackedCost(floor_s=0.0, alpha_s=3.3e-4, beta_s=3.2e-7, gamma_s=0.0)
    chosen = SchedulerSettings(0.002, 1024, 16_384, 0.05, "lazy")
    rate = load * saturation(cost, 51, chosen)

    def run_s(predicted_s: float) -> float:
        return 8e-4 + 1.5 * predicted_s

    without = Simulation(chosen, cost, run_s=run_s).run(poisson(rate, 1.0))
    beside = Simulation(chosen, cost, run_s=run_s, endless_bulk=lambda: chance.randint(2, 100)).run(poisson(rate, 1.0))
    assert beside.quantile(0.99) <= without.quantile(0.99) + chosen.bulk_slice_s / 2
    assert len(beside.answered) == len(without.answered)
    assert beside.bulk_tokens >= 51 * bulk_per_s


def test_filling_leaves_room_for_how_late_batches_usually_end() -> None:
    """The deadline leaves two floors: 32 tokens as predicted, but 20 since batches end late."""
    for late_s, most in ((0.0, 32), (0.75 * FLOOR, 20)):
        scheduler = Scheduler(SchedulerSettings(0.002, 99, 999, None, "hungry", bulk_slice_s=99.0), STEP)
        for _ in range(9):
            scheduler.ended(FLOOR, late_s, 10.0)
        scheduler.add([*bulk(*[1] * 60), one_job(0, 1, 10.0, deadline=10.0 + 2 * FLOOR)], 10.0)
        (batch,) = plan(scheduler.poll(10.0, idle_lanes=1)).batches
        assert most - 2 <= len(batch.ids) <= most


@pytest.mark.slow
@pytest.mark.parametrize("trigger", ["lazy", "hungry"])
def test_bulk_jobs_of_any_length_leave_below_saturation(trigger: TriggerName) -> None:
    """A long bulk job runs in the end, although it exceeds the growth allowed to one batch."""
    left = [400, 1, 300, 2, 200] * 20

    class Finite(Simulation):
        def _refill_bulk(self, now: float) -> None:
            jobs = [one_job(next(self._ids), length, now, bulk=True) for length in left]
            left.clear()
            self._jobs.update((job.ids[0], job) for job in jobs)
            self.scheduler.add(jobs, now)

    chosen = limits(trigger)
    outcome = Finite(chosen, COST).run(poisson(0.8 * saturation(COST, 51, chosen), 3.0))
    assert outcome.bulk_tokens == 20 * 903


def test_online_jobs_run_at_once_with_bulk_in_the_room_that_is_left() -> None:
    """The first 16 tokens cost the same, so 10 of bulk's are free; waiting for a fuller batch would gain nothing."""
    scheduler = Scheduler(limits(bulk_slice_s=2**-20), STEP)
    scheduler.add([*bulk(5, 5, 5), one_job(0, 6, 10.0)], 10.0)
    assert plan(scheduler.poll(10.0, idle_lanes=1)) == Plan((Batch((0, 100, 101), FLOOR),), Trigger.BULK, "fifo")
    assert scheduler.num_queued == 1
    check_scheduler(scheduler)


def test_nothing_fills_a_batch_that_others_wait_behind() -> None:
    scheduler = Scheduler(SchedulerSettings(0.002, 2, 4096, 0.1, "hungry", bulk_slice_s=1.0), STEP)
    scheduler.add([*bulk(1), *[one_job(number, 1, 10.0) for number in range(3)]], 10.0)
    assert plan(scheduler.poll(10.0, idle_lanes=1)).batches == (Batch((0, 1), FLOOR),)
    assert plan(scheduler.poll(10.0, idle_lanes=1)).batches == (Batch((2, 100), FLOOR),)


def test_filling_keeps_to_the_caps_and_to_onlines_deadlines() -> None:
    by_count = Scheduler(SchedulerSettings(0.002, 3, 4096, None, "hungry"), STEP)
    by_count.add([*bulk(1, 1, 1), one_job(0, 1, 10.0)], 10.0)
    assert plan(by_count.poll(10.0, idle_lanes=1)).batches[0].ids == (0, 100, 101)
    by_slots = Scheduler(SchedulerSettings(0.002, 9, 20, None, "hungry"), PaddedCost(FLOOR, 0.0, 0.0, 0.0))
    by_slots.add([*bulk(5, 5, 5, 5), one_job(0, 10, 10.0)], 10.0)
    assert plan(by_slots.poll(10.0, idle_lanes=1)).batches[0].ids == (0, 100)  # 20 slots of the longest
    in_time = Scheduler(SchedulerSettings(0.002, 9, 999, None, "hungry", bulk_slice_s=9.0), STEP)
    in_time.add([*bulk(16, 16), one_job(0, 16, 10.0, deadline=10.0 + 1.5 * FLOOR)], 10.0)
    assert plan(in_time.poll(10.0, idle_lanes=1)).batches == (Batch((0,), FLOOR),)


def test_alone_it_runs_in_slices_of_at_least_one_sequence() -> None:
    scheduler = Scheduler(limits(bulk_slice_s=2 * FLOOR), STEP)
    scheduler.add([one_job(0, 1, 10.0)], 10.0)
    assert plan(scheduler.poll(10.1 - 0.05, idle_lanes=1)).trigger is Trigger.TIMEOUT
    scheduler.add(bulk(8, 8, 8, 400, 8), 10.05)
    assert scheduler.is_full is False  # bulk is never prepared ahead while online jobs arrive
    assert plan(scheduler.poll(10.05, idle_lanes=1)) == Plan((Batch((100, 101), FLOOR),), Trigger.BULK, "fifo")
    assert [plan(scheduler.poll(10.05, idle_lanes=1)).batches[0].ids for _ in range(3)] == [(102,), (103,), (104,)]


def test_after_a_quiet_time_it_runs_in_full_batches_ahead_of_time() -> None:
    scheduler = Scheduler(SchedulerSettings(0.002, 256, 4096, 1.0, bulk_quiet_s=5.0, bulk_slice_s=2 * FLOOR), STEP)
    scheduler.add([one_job(0, 1, 10.0)], 10.0)
    scheduler.poll(10.002, idle_lanes=1)
    scheduler.add(bulk(*[8] * 200), 14.0)
    assert len(plan(scheduler.poll(14.0, idle_lanes=1)).batches[0].ids) == 2
    assert not scheduler.is_full
    scheduler.poll(15.0, idle_lanes=0)
    assert scheduler.is_full
    # Full: a quarter of the SLO, 1024 tokens, so that online jobs that arrive meanwhile are in time.
    assert len(plan(scheduler.poll(15.0, idle_lanes=1)).batches[0].ids) == 128


def test_bulk_has_only_the_deadlines_it_brings() -> None:
    scheduler = Scheduler(limits(), STEP)
    scheduler.add([*bulk(1), one_job(7, 1, 10.0, deadline=10.5, bulk=True)], 10.0)
    assert [rejection.id for rejection in scheduler.poll(999.0, idle_lanes=0).rejected] == [7]
    assert scheduler.backlog_s == 0.0
    assert (scheduler.num_queued, scheduler.queued_tokens) == (1, 1)
    assert plan(scheduler.poll(math.nextafter(999.0, 1e9), idle_lanes=1)).batches[0].ids == (100,)
