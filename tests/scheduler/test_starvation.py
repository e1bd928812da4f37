"""Every request leaves within a stated bound at any load below saturation, under any mix of policies and deadlines."""

import itertools
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.scheduler import PackedCost, PaddedCost, Plan, Scheduler, SchedulerSettings
from penstock.scheduler.settings import AdmissionName, OrderName, PartitionName, TriggerName
from tests.examples import examples
from tests.scheduler.jobs import one_job
from tests.scheduler.simulation import Arrival, Simulation

TOKEN_S = 1e-3
MAX_TOKENS = 120
MAX_WAIT_S = 0.02
BURST_S = 0.2  # most work that comes at once
LONGEST_S = MAX_TOKENS * TOKEN_S  # of a batch


def bound_s(load: float, lanes: int) -> float:
    """Longest time in the system, in any order of service, if at most BURST_S + load * lanes * t comes in t seconds.

    Work is counted as of sequences that run alone; together they take no more. A lane is idle only while the queue
    waits for a fuller batch, MAX_WAIT_S at most. Once all lanes are busy they stay so for L seconds. In these they do
    the work that came in MAX_WAIT_S + L, and the rest of the batches that ran already:
    lanes * L <= (lanes - 1) * LONGEST_S + BURST_S + load * lanes * (MAX_WAIT_S + L). A job waits for a fuller batch and
    starts in that time. With one lane it also ends in it; with more, its batch may go on when another lane falls idle.
    """
    work_s = (lanes - 1) * LONGEST_S + BURST_S + load * lanes * MAX_WAIT_S
    return MAX_WAIT_S + work_s / (lanes * (1 - load)) + (LONGEST_S if lanes > 1 else 0.0)


@st.composite
def bounded_arrivals(draw: st.DrawFn, rate: float, floor_s: float) -> list[Arrival]:
    """Random arrivals within the bound, as of a leaky bucket: an arrival that would exceed it is delayed."""
    gaps_s, slos_s = st.sampled_from([0.0, 1e-3, 0.05]), st.sampled_from([None, 0.06, 0.4, 9.0])
    arrivals, at, level_s = [], 0.0, 0.0
    for gap_s, tokens, slo_s in draw(
        st.lists(st.tuples(gaps_s, st.integers(1, 100), slos_s), min_size=draw(st.sampled_from([1, 40])))
    ):
        alone_s = max(floor_s, tokens * TOKEN_S)
        level_s = max(0.0, level_s - rate * gap_s)
        wait_s = max(0.0, level_s + alone_s - BURST_S) / rate
        at, level_s = at + gap_s + wait_s, max(0.0, level_s - rate * wait_s) + alone_s
        arrivals.append(Arrival(at, tokens, slo_s))
    return arrivals


@pytest.mark.slow
@settings(max_examples=examples(400))
@given(
    st.data(),
    st.sampled_from([0.5, 0.9, 0.99]),
    st.sampled_from([0.0, 0.03]),
    st.integers(1, 3),
    st.sampled_from(get_args(TriggerName)),
    st.sampled_from(get_args(PartitionName)),
    st.sampled_from(get_args(OrderName)),
    st.sampled_from(get_args(AdmissionName)),
    st.integers(1, 9),
)
def test_every_request_leaves_within_the_bound(
    data: st.DataObject,
    load: float,
    floor_s: float,
    lanes: int,
    trigger: TriggerName,
    partition: PartitionName,
    order: OrderName,
    admission: AdmissionName,
    window: int,
) -> None:
    """Every job is answered within the bound, or rejected; under `accept` only if its deadline is shorter."""
    arrivals = data.draw(bounded_arrivals(load * lanes, floor_s))
    chosen = SchedulerSettings(
        MAX_WAIT_S, 4, MAX_TOKENS, None, trigger, partition, order, admission, num_lanes=lanes, window=window
    )
    outcome = Simulation(chosen, PackedCost(floor_s, 0.0, TOKEN_S, 0.0)).run(arrivals)
    assert len(outcome.answered) + len(outcome.rejected) == len(arrivals)
    assert max(outcome.latencies, default=0.0) <= bound_s(load, lanes) + 1e-9
    patient = [arrival for arrival in arrivals if arrival.slo_s is None or arrival.slo_s > bound_s(load, lanes)]
    if admission == "accept":
        assert len(outcome.answered) >= len(patient)


@settings(max_examples=examples(100))
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=60),
    st.sampled_from(get_args(PartitionName)),
    st.sampled_from(get_args(OrderName)),
    st.sampled_from([None, 50.0]),
)
def test_beyond_saturation_the_oldest_of_equals_go_first(
    lengths: list[int], partition: PartitionName, order: OrderName, slo_s: float | None
) -> None:
    """Each plan takes the oldest queued jobs: no job behind the window runs before one in it."""
    chosen = SchedulerSettings(0.0, 3, 100, slo_s, "hungry", partition, order, "accept", window=6)
    scheduler = Scheduler(chosen, PaddedCost(0.0, 1e-4, 1e-3, 0.0))
    waiting = iter(enumerate(lengths))
    queued: list[int] = []
    for now in itertools.count():
        jobs = [one_job(job_id, tokens, float(now) / 1e6) for job_id, tokens in itertools.islice(waiting, 4)]
        scheduler.add(jobs, now / 1e6)
        queued += [job.ids[0] for job in jobs]
        decision = scheduler.poll(now / 1e6, idle_lanes=1)
        if not isinstance(decision, Plan):
            break
        planned = [job_id for batch in decision.batches for job_id in batch.ids]
        assert sorted(planned) == queued[: len(planned)]
        del queued[: len(planned)]
    assert not queued
