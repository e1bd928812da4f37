"""Single flight: equal sequences are computed once, as urgently as the most urgent of them, and none is lost."""

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.producer.errors import Overloaded
from penstock.worker.batching.single_flight import SingleFlight, urgency
from penstock.worker.requests.request import PendingSequence
from tests.examples import examples

MakeSequences = Callable[..., list[PendingSequence]]
One = Callable[..., PendingSequence]


@pytest.fixture
def one(make_sequences: MakeSequences) -> One:
    """`one(1, deadline=3.0)`: the only sequence of its request; equal numbers make equal sequences."""

    def make(number: int = 1, *, deadline: float | None = None, bulk: bool = False) -> PendingSequence:
        return make_sequences([number], deadline=deadline, bulk=bulk)[0]

    return make


def promote_all(flights: SingleFlight, sequences: Sequence[PendingSequence]) -> None:
    assert flights.promote(flights.join(sequences)) == []


def fail(sequence: PendingSequence) -> None:
    sequence.request.reject(Overloaded("too late"))


def test_equal_sequences_need_one_job(one: One) -> None:
    flights = SingleFlight()
    first, second, other = one(1), one(1), one(2)
    assert flights.join([first, second, other]) == [first, other]
    assert flights.promote([first, other]) == []
    third = one(1)
    assert flights.join([third]) == []
    flights.start([first])
    assert flights.finish([first]) == [[first, second, third]]
    assert flights.join([one(1)])  # a new flight


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
    one: One, first: dict[str, object], later: dict[str, object], takes_over: bool
) -> None:
    flights = SingleFlight()
    leader, newcomer = one(**first), one(**later)
    promote_all(flights, [leader])
    assert flights.join([newcomer]) == ([newcomer] if takes_over else [])
    if takes_over:
        assert flights.promote([newcomer]) == [leader]
    together = [one(**first), one(**later)]
    assert SingleFlight().join(together) == [together[1] if takes_over else together[0]]


def test_the_leader_is_fixed_once_its_job_has_started(one: One) -> None:
    flights = SingleFlight()
    leader = one(bulk=True)
    promote_all(flights, [leader])
    flights.start([leader])
    assert flights.join([one(deadline=1.0)]) == []


def test_sequences_that_would_be_late_with_a_refused_leader_are_named(one: One) -> None:
    flights = SingleFlight()
    hopeless, patient, endless, bulk = one(deadline=3.0), one(deadline=9.0), one(), one(bulk=True)
    leader = one(deadline=2.0)
    assert flights.join([leader, hopeless, patient, endless, bulk]) == [leader]
    assert flights.late_with(leader, 2.5) == [(leader, 2.5), (hopeless, 1.5)]
    for refused in (leader, hopeless):
        fail(refused)
    assert flights.next_leader(leader) is patient


def test_a_refused_newcomer_leaves_the_flight_to_its_leader(one: One) -> None:
    flights = SingleFlight()
    leader, newcomer = one(deadline=9.0), one(deadline=3.0)
    promote_all(flights, [leader])
    assert flights.join([newcomer]) == [newcomer]
    assert flights.late_with(newcomer, 20.0) == [(newcomer, 20.0)]
    fail(newcomer)
    assert flights.next_leader(newcomer) is None
    flights.start([leader])
    assert flights.finish([leader]) == [[leader]]


def test_a_flight_without_requests_ends(one: One) -> None:
    flights = SingleFlight()
    promote_all(flights, [leader := one()])
    flights.start([leader])
    fail(leader)
    assert flights.next_leader(leader) is None
    assert flights.join([again := one()]) == [again]


@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([None, 1.0, 2.0, 3.0]), st.booleans(), st.booleans()), max_size=20
    ),
    st.lists(st.integers(0, 20), max_size=3),
)
def test_each_sequence_comes_back_once_and_the_leader_is_the_most_urgent_admitted(
    one: One, drawn: list[tuple[int, float | None, bool, bool]], cuts: list[int]
) -> None:
    """Sequences come in a few calls; some candidates are admitted, the others refused alone."""
    flights = SingleFlight()
    sequences = [one(number, deadline=deadline, bulk=bulk) for number, deadline, bulk, _ in drawn]
    is_admitted = {
        id(sequence): admitted or deadline is None  # without a deadline none is refused
        for sequence, (_, deadline, _, admitted) in zip(sequences, drawn, strict=True)
    }
    leaders: dict[bytes, PendingSequence] = {}
    edges = [0, *sorted(cuts), len(sequences)]
    for start, stop in itertools.pairwise(edges):
        candidates = flights.join(sequences[start:stop])
        while candidates:
            next_leaders = []
            for candidate in candidates:
                if is_admitted[id(candidate)]:
                    former = leaders.get(candidate.key)
                    assert flights.promote([candidate]) == ([] if former is None else [former])
                    leaders[candidate.key] = candidate
                    continue
                for late, by_s in flights.late_with(candidate, 0.5):
                    assert by_s > 0
                    fail(late)
                assert candidate.request.is_failed
                next_leaders.append(flights.next_leader(candidate))
            candidates = [leader for leader in next_leaders if leader is not None]
    finished: list[PendingSequence] = []
    for leader in leaders.values():
        flights.start([leader])
        [flight] = flights.finish([leader])
        assert not flight or leader.request.is_failed or urgency(leader) == min(map(urgency, flight))
        finished += flight
    kept = [sequence for sequence in sequences if not sequence.request.is_failed]
    assert sorted(map(id, finished)) == sorted(map(id, kept))  # none lost, none twice
