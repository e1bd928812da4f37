"""Admission: jobs are rejected before admitted ones are late, throughput stays, and a burst has no lasting effect."""

import itertools
import random
from collections.abc import Sequence
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.scheduler import (
    Batch,
    Cause,
    Job,
    PackedCost,
    PaddedCost,
    Plan,
    RejectedJob,
    Scheduler,
    SchedulerSettings,
    Wait,
)
from penstock.scheduler.queueing.job_queue import JobQueue, Pace, QueuedJob
from penstock.scheduler.settings import PartitionName, TriggerName
from tests.examples import examples
from tests.scheduler.integrity import check_scheduler
from tests.scheduler.jobs import one_job
from tests.scheduler.simulation import Arrival, Outcome, Simulation, poisson, saturation

# Slow enough that a second is quickly simulated: 1 ms at least, 5,000 sequences of 51 tokens a second.
COST = PackedCost(floor_s=1e-3, alpha_s=5e-4, beta_s=3.7e-6, gamma_s=0.0)
LINEAR = PackedCost(0.0, 0.0, 2**-10, 0.0)
SLO_S = 0.1


def limits(trigger: TriggerName = "lazy", num_lanes: int = 1, partition: PartitionName = "fifo") -> SchedulerSettings:
    return SchedulerSettings(0.002, 256, 4096, SLO_S, trigger, partition, num_lanes=num_lanes)


def late_or_rejected(outcome: Outcome, cause: Cause) -> int:
    """How many admitted jobs were answered late, or rejected for this cause."""
    return len(outcome.answered) - outcome.num_in_time + outcome.num_rejected(cause)


@pytest.mark.slow
@pytest.mark.parametrize("trigger", get_args(TriggerName))
@pytest.mark.parametrize("num_lanes", [1, 2])
def test_at_nine_tenths_of_saturation_all_but_a_thousandth_are_in_time(trigger: TriggerName, num_lanes: int) -> None:
    chosen = limits(trigger, num_lanes)
    rate = 0.9 * saturation(COST, 51, chosen)
    outcome = Simulation(chosen, COST).run(poisson(rate, 2.0))
    assert late_or_rejected(outcome, Cause.QUEUED) <= 0.001 * len(outcome.answered)
    assert outcome.num_rejected(Cause.OVERLOADED) <= 0.001 * len(outcome.answered)


@pytest.mark.slow
@pytest.mark.parametrize("num_lanes", [1, 2])
def test_beyond_saturation_goodput_stays_and_those_let_in_are_in_time(num_lanes: int) -> None:
    chosen = limits(num_lanes=num_lanes)
    at_saturation = saturation(COST, 51, chosen)
    goodput = {}
    for load in (1.0, 2.0, 4.0):
        outcome = Simulation(chosen, COST).run(poisson(load * at_saturation, 1.0))
        goodput[load] = outcome.num_in_time / outcome.end
        assert late_or_rejected(outcome, Cause.QUEUED) <= 0.001 * len(outcome.answered)
    assert min(goodput.values()) >= 0.9 * max(goodput.values())


def test_wrong_predictions_are_made_up_for_by_what_is_spared() -> None:
    chance = random.Random(7)
    chosen = limits()
    rate = 2.0 * saturation(COST, 51, chosen)
    simulation = Simulation(chosen, COST, run_s=lambda predicted_s: predicted_s * chance.uniform(0.8, 1.2))
    outcome = simulation.run(poisson(rate, 1.0))
    assert outcome.num_in_time >= 0.85 * saturation(COST, 51, chosen) * outcome.end
    assert late_or_rejected(outcome, Cause.QUEUED) <= 0.001 * len(outcome.answered)


@pytest.mark.slow
def test_tight_deadlines_do_not_push_out_who_was_let_in() -> None:
    """Under EDF a request with a tight deadline overtakes relaxed ones, which must still end in time."""
    chance = random.Random(3)
    chosen = limits()
    rate = 2.0 * saturation(COST, 51, chosen)
    arrivals = (Arrival(at, tokens, chance.choice((0.04, 0.4))) for at, tokens, _ in poisson(rate, 1.5))
    outcome = Simulation(chosen, COST).run(arrivals)
    assert late_or_rejected(outcome, Cause.QUEUED) <= 0.001 * len(outcome.answered)
    assert outcome.num_in_time >= 0.9 * saturation(COST, 51, chosen) * outcome.end


@pytest.mark.slow
@pytest.mark.parametrize(("partition", "least"), [("dp", 0.7), ("fifo", 0.45)])
def test_the_padding_of_a_backlog_is_learned_from_the_plans(partition: PartitionName, least: float) -> None:
    """The estimate of a backlog leaves out padding, nearly half of a FIFO batch; it is corrected by the plans."""
    padded = PaddedCost(1e-3, 5e-4, 3.7e-6, 0.0)
    chosen = limits(partition=partition)
    rate = 2.0 * saturation(padded, 51, chosen)
    outcome = Simulation(chosen, padded).run(poisson(rate, 1.0))
    assert late_or_rejected(outcome, Cause.QUEUED) <= 0.02 * len(outcome.answered)
    assert outcome.num_in_time >= least * saturation(padded, 51, chosen) * outcome.end


def test_after_a_tenfold_burst_rejections_stop_at_once_and_for_good() -> None:
    chosen = limits()
    half = saturation(COST, 51, chosen) / 2
    burst = [
        *poisson(half, 0.5, seed=1),
        *poisson(10 * half, 0.3, seed=2, start=0.5),
        *poisson(half, 1.0, seed=3, start=0.8),
    ]
    outcome = Simulation(chosen, COST).run(burst)
    rejected_at = [arrival for arrival, _ in outcome.rejected]
    assert min(rejected_at) > 0.5
    # A queue as long as the SLO is worked off at half of the lanes' rate.
    assert max(rejected_at) < 0.8 + SLO_S
    assert late_or_rejected(outcome, Cause.QUEUED) == 0
    # While the burst lasts rejections come evenly: no tenth of it lets in twice what another does.
    let_in = [sum(begin <= at < begin + 0.03 for at, _, _ in outcome.answered) for begin in (0.6, 0.65, 0.7, 0.75)]
    assert max(let_in) <= 2 * min(let_in)
    after = sorted(end - at for at, end, _ in outcome.answered if at > 0.8 + 2 * SLO_S)
    before = sorted(end - at for at, end, _ in outcome.answered if at < 0.5)
    assert after[len(after) // 2] == pytest.approx(before[len(before) // 2], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("slo_s", "stall_s"), [(0.03, 0.015), (0.025, 0.02), (0.05, 0.04)])
def test_recovers_from_stalls_in_overload(slo_s: float, stall_s: float) -> None:
    """After a stall admitted jobs are late. The few that are not must not change the estimate of a backlog."""
    chosen = SchedulerSettings(0.002, 256, 4096, slo_s)
    cost = PackedCost(floor_s=0.0, alpha_s=4.8e-4, beta_s=1.3e-6, gamma_s=0.0)
    capacity = saturation(cost, 51, chosen)
    number = itertools.count()

    def run_s(predicted_s: float) -> float:
        batch = next(number)
        return predicted_s + (stall_s if batch < 60 and batch % 10 == 0 else 0.0)

    outcome = Simulation(chosen, cost, run_s=run_s).run(poisson(2 * capacity, 1.7))
    assert sum(1.2 < end <= 1.7 for _, end, _ in outcome.answered) >= 0.95 * 0.5 * capacity


@settings(max_examples=examples(150))
@given(
    st.lists(st.tuples(st.floats(0, 0.05), st.integers(1, 64), st.floats(0.01, 1.0)), min_size=1, max_size=40),
    st.integers(1, 3),
)
# A short batch of the tight job's own grows by a longer one, or by one that comes later.
@example([(0.0, 1, 0.03125), (0.0, 32, 1.0), (0.0, 33, 1.0)], 3)
@example([(0.0, 33, 1.0), (0.0, 64, 1.0), (0.03125, 64, 1.0), (0.03125, 1, 0.125), (0.03125, 31, 1.0)], 2)
def test_an_admitted_job_is_in_time_whatever_comes_later(
    shapes: list[tuple[float, int, float]], max_sequences: int
) -> None:
    """Exact predictions, any deadlines, one lane, no waiting for fuller batches: no rejection but on arrival."""
    chosen = SchedulerSettings(0.0, max_sequences, 10_000, None, "hungry")
    gaps, tokens, slos_s = zip(*shapes, strict=True)
    arrivals = map(Arrival, itertools.accumulate(gaps), tokens, slos_s)
    outcome = Simulation(chosen, LINEAR).run(arrivals)
    assert outcome.num_in_time == len(outcome.answered)
    assert {cause for _, cause in outcome.rejected} <= {Cause.OVERLOADED}


def test_the_work_before_a_job_decides() -> None:
    """64 tokens take 1/16 s; the SLO of 1/2 s leaves 3/8 s of waiting, since its own batch may take 1/8 s."""
    chosen = SchedulerSettings(0.0, 64, 10_000, 0.5, "hungry")
    busy = Scheduler(chosen, LINEAR)
    assert busy.add([one_job(0, 64, 10.0)], 10.0, busy_s=0.375) == []
    assert busy.backlog_s == pytest.approx(1 / 16)
    (rejection,) = busy.add([one_job(1, 64, 10.0)], 10.0, busy_s=0.375)
    assert (rejection.id, rejection.cause) == (1, Cause.OVERLOADED)
    assert rejection.late_s == pytest.approx(1 / 16)
    assert busy.add([one_job(1, 64, 10.0, deadline=11.0)], 10.0, busy_s=0.375) == []  # a job with more time may wait
    assert busy.add([one_job(2, 64, 10.0, bulk=True)], 10.0, busy_s=9.0) == []  # nor do bulk jobs mind
    pair = Scheduler(SchedulerSettings(0.0, 64, 10_000, 0.5, "hungry", num_lanes=2), LINEAR)
    assert (
        pair.add([one_job(0, 64, 10.0), one_job(1, 64, 10.0)], 10.0, busy_s=0.34375) == []
    )  # two lanes, half the wait


def test_no_job_may_be_put_before_one_whose_long_batch_must_begin_first() -> None:
    """The queued job has the later deadline, but its batch is long, so it must begin before the new job."""
    queue = JobQueue()
    queue.add([QueuedJob.of(10.0, 0, (0,), (1,), (0.0, 10.0), Pace(1.0, 0.0, 5.0, 10.0))])
    newcomer = QueuedJob.of(9.9, 1, (1,), (1,), (0.0, 9.9), Pace(0.25, 0.0, 0.1, 9.9))
    assert queue.lateness([newcomer], 4.875) == pytest.approx([0.125])
    assert queue.lateness([newcomer], 4.75)[0] <= 0.0


@given(
    queued=st.lists(st.tuples(st.integers(1, 60), st.integers(2, 16)), max_size=20),
    tokens=st.lists(st.integers(1, 60), min_size=1, max_size=12),
    sixteenths=st.integers(1, 16),
)
@settings(max_examples=examples(200))
def test_a_job_is_admitted_where_its_sequences_one_after_another_all_would_be(
    queued: list[tuple[int, int]], tokens: list[int], sixteenths: int
) -> None:
    """Sequences have 64 tokens in 1/16 s. Of a job either all are queued or none."""
    chosen = SchedulerSettings(0.0, 64, 10_000, 0.5, "hungry")
    together, alone = Scheduler(chosen, LINEAR), Scheduler(chosen, LINEAR)
    for scheduler in (together, alone):
        for number, (size, due) in enumerate(queued):
            scheduler.add([one_job(number, size, 10.0, 10.0 + due / 16)], 10.0)
    before = together.num_queued
    jobs = [one_job(100 + number, size, 10.0, 10.0 + sixteenths / 16) for number, size in enumerate(tokens)]
    whole = Job(range(100, 100 + len(jobs)), tokens, *jobs[0][2:])
    rejected = together.add([whole], 10.0)
    for job in jobs:
        alone.add([job], 10.0)
    are_all_in_time = alone.num_queued == before + len(jobs)
    assert [one.id for one in rejected] == ([] if are_all_in_time else list(whole.ids))
    assert together.num_queued == before + (len(jobs) if are_all_in_time else 0)
    check_scheduler(together)


@given(
    seed=st.integers(0, 2**32),
    partition=st.sampled_from(get_args(PartitionName)),
    caps=st.tuples(st.sampled_from([4, 16, 64]), st.sampled_from([200, 2000])),
    num_lanes=st.integers(1, 2),
)
@settings(max_examples=examples(60), deadline=None)
def test_requests_that_are_one_job_leave_as_each_alone_would(
    seed: int, partition: PartitionName, caps: tuple[int, int], num_lanes: int
) -> None:
    """Under overload and without, whatever was planned or cancelled before: admission, batches and rejections."""
    chosen, drawn = SchedulerSettings(0.01, *caps, 0.1, "lazy", partition, num_lanes=num_lanes), random.Random(seed)
    cost = PackedCost(1e-3, 5e-4, drawn.choice([1e-5, 1e-4]), 0.0)
    together, alone = Scheduler(chosen, cost), Scheduler(chosen, cost)
    now, fresh = 10.0, itertools.count()
    for _ in range(40):
        now += drawn.uniform(0.0, 0.01)
        jobs = []
        for left in drawn.sample([None, 0.02, 0.05, 0.2, 5.0], drawn.randrange(3)):
            sizes = drawn.choices([1, 3], [3, 1], k=drawn.randrange(1, 12))
            ids = list(itertools.islice(fresh, sum(sizes)))
            lengths = [drawn.randrange(1, 60) for _ in ids]
            due = None if left is None else now + left
            jobs.append(Job(ids, lengths, now, due, drawn.random() < 0.2, sizes))
        requests = [one for job in jobs for one in job.by_request()]
        assert_alike(together.add(jobs, now), alone.add(requests, now))
        gone = [drawn.randrange(next(fresh) + 1)]
        assert together.remove(gone) == alone.remove(gone)
        plans = [scheduler.poll(now, idle_lanes=num_lanes) for scheduler in (together, alone)]
        assert_alike(plans[0].rejected, plans[1].rejected)
        assert [batch.ids for batch in batches_of(plans[0])] == [batch.ids for batch in batches_of(plans[1])]
        check_scheduler(together)


def assert_alike(found: Sequence[RejectedJob], expected: Sequence[RejectedJob]) -> None:
    """The same sequences for the same causes, as late but for rounding."""
    by_id, alone = sorted(found), sorted(expected)
    assert [one[:2] for one in by_id] == [one[:2] for one in alone]
    assert [one.late_s for one in by_id] == pytest.approx([one.late_s for one in alone])


def batches_of(answer: Plan | Wait) -> Sequence[Batch]:
    return answer.batches if isinstance(answer, Plan) else ()


def test_late_arrivals_are_rejected_with_how_late_they_are() -> None:
    for admission in ("accept", "deadline"):
        chosen = SchedulerSettings(0.0, 4, 100, 0.5, admission=admission)
        scheduler = Scheduler(chosen, LINEAR)
        late = [
            one_job(0, 1, 10.0, deadline=9.75),
            one_job(1, 1, 9.0),
            one_job(2, 1, 10.0, deadline=10.0),
            one_job(3, 1, 9.75),
        ]
        assert scheduler.add(late, 10.0) == [
            RejectedJob(0, Cause.ARRIVED_LATE, 0.25),
            RejectedJob(1, Cause.ARRIVED_LATE, 0.5),
            RejectedJob(2, Cause.ARRIVED_LATE, 0.0),
        ]
        assert scheduler.num_queued == 1


def test_what_can_no_longer_be_met_is_rejected_and_not_run_late() -> None:
    stalled = Scheduler(SchedulerSettings(0.0, 2, 100, 1.0, "hungry"), LINEAR)
    stalled.add([one_job(0, 64, 10.0, 10.5), one_job(1, 64, 10.0), one_job(2, 1, 10.0, 99.0)], 10.0)
    assert stalled.poll(10.25, idle_lanes=0).rejected == ()
    # At 10.96875 the first has expired, and the second's 1/16 s would end 1/32 s after its deadline.
    plan = stalled.poll(10.96875, idle_lanes=1)
    assert isinstance(plan, Plan)
    assert plan.batches == (Batch((2,), 1 / 1024),)
    assert plan.rejected[0] == RejectedJob(0, Cause.QUEUED, 0.46875)
    assert (plan.rejected[1].id, plan.rejected[1].cause) == (1, Cause.QUEUED)
    lenient = Scheduler(SchedulerSettings(0.0, 2, 100, 1.0, "hungry", admission="accept"), LINEAR)
    lenient.add([one_job(0, 64, 10.0, 10.5), one_job(1, 64, 10.0)], 10.0)
    decision = lenient.poll(10.96875, idle_lanes=1)
    assert isinstance(decision, Plan)
    assert decision.batches == (Batch((1,), 1 / 16),)  # late, but not expired
    assert decision.rejected == (RejectedJob(0, Cause.QUEUED, 0.46875),)


def test_the_expired_are_rejected_while_all_lanes_are_busy() -> None:
    waiting = Scheduler(SchedulerSettings(0.0, 2, 100, 1.0), LINEAR)
    waiting.add([one_job(0, 1, 10.0, 10.5), one_job(1, 1, 10.0, 12.0)], 10.0)
    assert waiting.poll(10.5, idle_lanes=0).rejected == (RejectedJob(0, Cause.QUEUED, 0.0),)
    assert waiting.num_queued == 1
    check_scheduler(waiting)
