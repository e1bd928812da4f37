"""Single flight: equal sequences run once, as urgently as the most urgent of them, and none is lost."""

import gc
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.producer.errors import Overloaded
from penstock.scheduler.types import Cause, RejectedJob
from penstock.worker.batching.flights import Flight, Flights, urgency
from penstock.worker.requests.sequence_block import SequenceBlock
from tests.examples import examples
from tests.worker.conftest import MakeSequences

One = Callable[..., SequenceBlock]

both_kinds = pytest.mark.parametrize("by_step", [False, True], ids=["batches", "steps"])


@pytest.fixture
def one(make_sequences: MakeSequences) -> One:
    """`one(1, deadline=3.0)`: the only sequence of its request; equal numbers make equal sequences."""

    def make(number: int = 1, *, deadline: float | None = None, bulk: bool = False) -> SequenceBlock:
        return make_sequences([number], deadline=deadline, bulk=bulk)[0]

    return make


def join(flights: Flights, *sequences: SequenceBlock) -> list[Flight]:
    """The flights that need a job, all of which are admitted."""
    found = flights.join(sequences)
    flights.admit(found)
    return found


def fail(sequence: SequenceBlock) -> None:
    sequence.request.reject(Overloaded("too late"))


def overloaded(flight: Flight, late_s: float) -> RejectedJob:
    return RejectedJob(flight.job_id, Cause.OVERLOADED, late_s)


@both_kinds
def test_equal_sequences_need_one_job(one: One, by_step: bool) -> None:
    flights = Flights(by_step=by_step)
    first, second, other = one(1), one(1), one(2)
    flight, another = join(flights, first, second, other)
    assert [flight.leader, another.leader] == [first, other]
    assert (len(flights), flights.num_queued, flights.queued_tokens) == (2, 2, 2)
    third = one(1)
    assert flights.join([third]) == []
    flights.start([flight.job_id], 1.0)
    assert flights.num_queued == 1
    assert flights.join([fourth := one(1)]) == []
    assert flights.end(flight.job_id) is flight
    assert flight.alive == [first, second, third, fourth]
    assert flights.end(flight.job_id) is None
    assert flights.join([one(1)])  # a new flight


@both_kinds
@pytest.mark.parametrize(
    ("first", "later", "takes_over"),
    [
        ({"bulk": True}, {}, True),
        ({}, {"bulk": True, "deadline": 1.0}, False),
        ({}, {"deadline": 9.0}, True),
        ({"deadline": 5.0}, {"deadline": 9.0}, False),
        ({"deadline": 5.0}, {"deadline": 4.0}, True),
        ({"bulk": True, "deadline": 5.0}, {"bulk": True, "deadline": 4.0}, True),
        ({}, {}, False),
    ],
)
def test_a_more_urgent_sequence_takes_over_while_the_job_is_queued(
    one: One, by_step: bool, first: dict[str, object], later: dict[str, object], takes_over: bool
) -> None:
    flights = Flights(by_step=by_step)
    leader, newcomer = one(**first), one(**later)
    [flight] = join(flights, leader)
    job_id = flight.job_id
    assert flights.join([newcomer]) == ([flight] if takes_over else [])
    if takes_over:
        assert flight.former is not None
        assert flight.former == (job_id, leader)
        assert flights[flight.job_id].leader is newcomer
    [together] = Flights(by_step=by_step).join([one(**first), last := one(**later)])
    assert (together.leader is last, together.former) == (takes_over, None)


@pytest.mark.parametrize(("by_step", "joins"), [(False, True), (True, False)])
def test_a_bulk_job_that_has_begun_is_shared_by_an_online_sequence_where_it_ends_soon(
    one: One, by_step: bool, joins: bool
) -> None:
    flights = Flights(by_step=by_step)
    [flight] = join(flights, one(bulk=True))
    flights.start([flight.job_id], 1.0)
    assert flights.join([one(deadline=1.0)]) == ([] if joins else [flights[1]])
    assert flights.join([one(bulk=True)]) == []


def test_sequences_that_would_be_late_with_a_refused_leader_are_named(one: One) -> None:
    flights = Flights(by_step=False)
    hopeless, patient, endless, bulk = one(deadline=3.0), one(deadline=9.0), one(), one(bulk=True)
    leader = one(deadline=2.0)
    [flight] = flights.join([leader, hopeless, patient, endless, bulk])
    assert flights.refuse(overloaded(flight, 2.5)) == ([(leader, 2.5), (hopeless, 1.5)], [patient, endless, bulk])
    assert len(flights) == 0
    assert flights.refuse(overloaded(flight, 2.5)) == ([], [])


def test_a_refused_newcomer_leaves_the_flight_to_its_job(one: One) -> None:
    flights = Flights(by_step=False)
    leader, patient = one(deadline=9.0), one(deadline=10.0)
    [flight] = join(flights, leader, patient)
    job_id = flight.job_id
    newcomer, hurried, another = one(deadline=3.0), one(deadline=5.0), one(deadline=8.0)
    assert flights.join([newcomer, another, hurried]) == [flight]
    assert flights.refuse(overloaded(flight, 2.5)) == ([(newcomer, 2.5), (hurried, 0.5)], [another])
    assert (flight.job_id, flight.leader, flight.members) == (job_id, leader, [leader, patient])
    assert flights.join([another]) == [flight]  # it is still more urgent than the leader
    assert flight.former == (job_id, leader)
    assert len(flights) == 1


@both_kinds
def test_a_job_that_no_request_waits_for_ends(one: One, by_step: bool) -> None:
    flights = Flights(by_step=by_step)
    queued, begun, shared, equal = one(1), one(2), one(3), one(3)
    jobs = [flight.job_id for flight in join(flights, queued, begun, shared, equal)]
    flights.start(jobs[1:2], 1.0)
    for sequence in (queued, begun, shared):
        fail(sequence)
    requests = [sequence.request for sequence in (queued, begun, shared)]
    ended, left = flights.leave(requests)
    assert (sorted(ended), left) == ((jobs[:2], []) if by_step else (jobs[::2], [equal]))
    assert len(flights) == 1  # for a batch, the one that has begun: it runs to its end
    join(flights, one(1), *left)
    assert flights.requests(queued=False) >= {equal.request}


@both_kinds
def test_what_is_kept_of_a_request_does_not_grow_with_those_that_join_it(one: One, by_step: bool) -> None:
    flights = Flights(by_step=by_step)
    sequences = [one(deadline=100.0 - number) for number in range(50)]  # each more urgent than all before
    for sequence in sequences:
        join(flights, sequence)
    assert {len(sequence.request.flights) for sequence in sequences} == {1}
    for sequence in sequences:
        fail(sequence)
    ended, left = flights.leave(sequence.request for sequence in sequences)
    assert (len(ended), left, len(flights)) == (1, [], 0)


def test_members_are_late_where_jobs_take_long(one: One) -> None:
    for by_step in (False, True):
        flights = Flights(by_step=by_step)
        patient, late = one(), one(deadline=5.0)
        join(flights, late, patient)
        assert flights.late(4.0) == []
        assert flights.late(6.0) == ([(late, 1.0)] if by_step else [])
        assert flights.late(6.0) == []


def test_sequences_that_have_ended_are_forgotten_long_before_their_deadlines(make_sequences: MakeSequences) -> None:
    flights, ended = Flights(by_step=True), list[weakref.ref[Any]]()
    [first] = flights.join(make_sequences([7, 7], deadline=5.0))
    for number in range(300):
        [flight] = flights.join(make_sequences([1, number], deadline=3600.0))
        flights.end(flight.job_id)
        assert not flights.late(0.0)
        ended.append(weakref.ref(flight.leader.token_ids))
    del flight
    gc.collect()
    assert sum(one() is not None for one in ended) < 100
    assert flights.late(6.0) == [(first.leader, 1.0)]


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([None, 1.0, 2.0, 3.0]), st.booleans(), st.booleans()), max_size=20
    ),
    st.lists(st.integers(0, 20), max_size=3),
)
def test_each_sequence_is_in_one_flight_and_the_leader_is_the_most_urgent_admitted(
    one: One, drawn: list[tuple[int, float | None, bool, bool]], cuts: list[int]
) -> None:
    """Sequences come in a few calls; the jobs of some are admitted, the others refused."""
    flights, jobs = Flights(by_step=False), dict[int, Flight]()
    sequences = [one(number, deadline=deadline, bulk=bulk) for number, deadline, bulk, _ in drawn]
    is_admitted = {
        id(sequence): admitted or deadline is None  # without a deadline none is refused
        for sequence, (_, deadline, _, admitted) in zip(sequences, drawn, strict=True)
    }
    edges = [0, *sorted(cuts), len(sequences)]
    for start, stop in itertools.pairwise(edges):
        needed = flights.join(sequences[start:stop])
        while needed:
            anew: list[SequenceBlock] = []
            for flight in needed:
                if is_admitted[id(flight.leader)]:
                    if flight.former is not None:
                        assert jobs.pop(flight.former.job_id) is flight
                    flights.admit([flight])
                    jobs[flight.job_id] = flight
                    continue
                leader = flight.leader
                late, rest = flights.refuse(overloaded(flight, 0.5))
                assert late[0] == (leader, 0.5)
                assert all(by_s > 0 for _, by_s in late)
                for sequence, _ in late:
                    fail(sequence)
                anew += rest
            needed = flights.join(anew)
    assert len(flights) == len(jobs)
    kept = [sequence for sequence in sequences if not sequence.request.is_failed]
    members = [member for flight in jobs.values() for member in flight.alive]
    assert sorted(map(id, members)) == sorted(map(id, kept))  # none lost, none twice
    for job_id, flight in jobs.items():
        assert flights.end(job_id) is flight
        assert urgency(flight.leader) == min(map(urgency, flight.alive))
    assert (len(flights), flights.num_queued, flights.queued_tokens) == (0, 0, 0)
