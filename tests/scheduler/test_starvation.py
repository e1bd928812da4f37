"""Every request leaves within a stated bound at any load below saturation, under every combination of policies."""

import itertools
from typing import get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.scheduler import Job, PackedCost, PaddedCost, Plan, Scheduler, SchedulerSettings
from penstock.scheduler.settings import OrderName, PartitionName, TriggerName
from tests.scheduler.simulation import Arrival, Simulation

# A token takes a millisecond, whatever it runs with: so work and load are known without a schedule.
LINEAR = PackedCost(0.0, 0.0, 1e-3, 0.0)
MAX_WAIT_S = 0.02
BURST_S = 0.2  # most work that comes at once


def bound_s(load: float) -> float:
    """Longest time in the system, in any order of service, if at most BURST_S + load * t of work comes in t seconds.

    A lane is idle only while it waits for mates, MAX_WAIT_S at most. Once it is busy it stays so for L seconds, in
    which it does what came in MAX_WAIT_S + L: L <= BURST_S + load * (MAX_WAIT_S + L). A job leaves in the busy time in
    which it came, or waits for mates and leaves in the next.
    """
    return MAX_WAIT_S + (BURST_S + load * MAX_WAIT_S) / (1 - load)


@st.composite
def bounded_arrivals(draw: st.DrawFn, load: float) -> list[Arrival]:
    """Anything that keeps to the bound, a leaky bucket: who would spill over comes later."""
    arrivals, at, level_s = [], 0.0, 0.0
    for gap_s, tokens in draw(st.lists(st.tuples(st.sampled_from([0.0, 1e-3, 0.05]), st.integers(1, 100)), min_size=1)):
        level_s = max(0.0, level_s - load * gap_s)
        wait_s = max(0.0, level_s + tokens * 1e-3 - BURST_S) / load
        at, level_s = at + gap_s + wait_s, max(0.0, level_s - load * wait_s) + tokens * 1e-3
        arrivals.append(Arrival(at, tokens))
    return arrivals


@settings(max_examples=300, deadline=None)
@given(
    st.data(),
    st.sampled_from([0.5, 0.9, 0.99]),
    st.sampled_from(get_args(TriggerName)),
    st.sampled_from(get_args(PartitionName)),
    st.sampled_from(get_args(OrderName)),
    st.integers(1, 9),
)
def test_every_request_leaves_within_the_bound(
    data: st.DataObject, load: float, trigger: TriggerName, partition: PartitionName, order: OrderName, window: int
) -> None:
    arrivals = data.draw(bounded_arrivals(load))
    chosen = SchedulerSettings(MAX_WAIT_S, 4, 120, None, trigger, partition, order, "accept", window=window)
    outcome = Simulation(chosen, LINEAR).run(arrivals)
    assert len(outcome.answered) == len(arrivals)
    assert outcome.latencies[-1] <= bound_s(load) + 1e-9


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=60),
    st.sampled_from(get_args(PartitionName)),
    st.sampled_from(get_args(OrderName)),
    st.sampled_from([None, 50.0]),
)
def test_beyond_saturation_the_oldest_of_equals_go_first(
    lengths: list[int], partition: PartitionName, order: OrderName, slo_s: float | None
) -> None:
    """Nobody is passed over for who came after the plan's window: each plan is of the oldest that wait."""
    chosen = SchedulerSettings(0.0, 3, 100, slo_s, "hungry", partition, order, "accept", window=6)
    scheduler = Scheduler(chosen, PaddedCost(0.0, 1e-4, 1e-3, 0.0))
    waiting = iter(enumerate(lengths))
    queued: list[int] = []
    for now in itertools.count():
        jobs = [Job(job_id, tokens, float(now) / 1e6) for job_id, tokens in itertools.islice(waiting, 4)]
        scheduler.add(jobs, now / 1e6)
        queued += [job.id for job in jobs]
        decision = scheduler.poll(now / 1e6, idle_lanes=1)
        if not isinstance(decision, Plan):
            break
        planned = [job_id for batch in decision.batches for job_id in batch.ids]
        assert sorted(planned) == queued[: len(planned)]
        del queued[: len(planned)]
    assert not queued
