"""Flights: rows alike are computed once, on the terms of whoever can wait least, and nobody is lost on the way."""

import itertools
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.worker.batching.single_flight import Flights, urgency
from penstock.worker.requests.record import Row

MakeRows = Callable[..., list[Row]]


@pytest.fixture
def row(make_rows: MakeRows) -> Callable[..., Row]:
    """`row(1, deadline=3.0)`: the only row of its record; equal numbers make equal rows."""

    def make(number: int = 1, *, deadline: float | None = None, bulk: bool = False) -> Row:
        return make_rows([number], deadline=deadline, bulk=bulk)[0]

    return make


def lead_all(flights: Flights, rows: Sequence[Row]) -> None:
    for contender in flights.join(rows):
        flights.lead(contender)


def test_rows_alike_need_one_job(row: Callable[..., Row]) -> None:
    flights = Flights()
    first, second, other = row(1), row(1), row(2)
    assert flights.join([first, second, other]) == [first, other]
    for leader in (first, other):
        assert flights.lead(leader) is None
    third = row(1)
    assert flights.join([third]) == []
    flights.start(first)
    assert flights.finish(first) == [first, second, third]
    assert flights.join([row(1)])  # a new flight


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
def test_who_can_wait_less_takes_the_lead_while_the_job_waits(
    row: Callable[..., Row], first: dict[str, object], later: dict[str, object], takes_over: bool
) -> None:
    flights = Flights()
    leader, newcomer = row(**first), row(**later)
    lead_all(flights, [leader])
    assert flights.join([newcomer]) == ([newcomer] if takes_over else [])
    if takes_over:
        assert flights.lead(newcomer) is leader
    together = [row(**first), row(**later)]
    assert Flights().join(together) == [together[1] if takes_over else together[0]]


def test_nobody_takes_the_lead_once_it_runs(row: Callable[..., Row]) -> None:
    flights = Flights()
    leader = row(bulk=True)
    lead_all(flights, [leader])
    flights.start(leader)
    assert flights.join([row(deadline=1.0)]) == []


def test_with_a_refused_leader_go_those_that_would_be_late_too(row: Callable[..., Row]) -> None:
    flights = Flights()
    hopeless, patient, endless, bulk = row(deadline=3.0), row(deadline=9.0), row(), row(bulk=True)
    leader = row(deadline=2.0)
    [contender] = flights.join([leader, hopeless, patient, endless, bulk])
    assert contender is leader
    assert flights.refuse(leader, 2.5) == [(leader, 2.5), (hopeless, 1.5)]
    for refused in (leader, hopeless):
        refused.owner.failed = True
    assert flights.heir(leader) is patient


def test_a_refused_newcomer_leaves_the_flight_to_its_leader(row: Callable[..., Row]) -> None:
    flights = Flights()
    leader, newcomer = row(deadline=9.0), row(deadline=3.0)
    lead_all(flights, [leader])
    assert flights.join([newcomer]) == [newcomer]
    assert flights.refuse(newcomer, 20.0) == [(newcomer, 20.0)]
    newcomer.owner.failed = True
    assert flights.heir(newcomer) is None
    flights.start(leader)
    assert flights.finish(leader) == [leader]


def test_a_flight_that_nobody_waits_for_is_over(row: Callable[..., Row]) -> None:
    flights = Flights()
    lead_all(flights, [leader := row()])
    flights.start(leader)
    leader.owner.failed = True
    assert flights.heir(leader) is None
    assert flights.join([again := row()]) == [again]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([None, 1.0, 2.0, 3.0]), st.booleans(), st.booleans()), max_size=20
    ),
    st.lists(st.integers(0, 20), max_size=3),
)
def test_each_row_is_handed_back_once_and_the_leader_is_the_most_urgent_let_in(
    row: Callable[..., Row], given_rows: list[tuple[int, float | None, bool, bool]], cuts: list[int]
) -> None:
    """Rows come in a few calls; some contenders are let in, the others refused without company."""
    flights = Flights()
    rows = [row(number, deadline=deadline, bulk=bulk) for number, deadline, bulk, _ in given_rows]
    is_let_in = {
        id(one): let_in or deadline is None  # without a deadline nobody is refused
        for one, (_, deadline, _, let_in) in zip(rows, given_rows, strict=True)
    }
    leaders: dict[bytes, Row] = {}
    edges = [0, *sorted(cuts), len(rows)]
    for start, stop in itertools.pairwise(edges):
        contenders = flights.join(rows[start:stop])
        while contenders:
            heirs = []
            for one in contenders:
                if is_let_in[id(one)]:
                    assert flights.lead(one) is leaders.get(one.key)
                    leaders[one.key] = one
                else:
                    for late, by_s in flights.refuse(one, 0.5):
                        assert by_s > 0
                        late.owner.failed = True
                    assert one.owner.failed
                    heirs += [heir for heir in [flights.heir(one)] if heir is not None]
            contenders = heirs
    finished: list[Row] = []
    for leader in leaders.values():
        flights.start(leader)
        flight = flights.finish(leader)
        assert not flight or leader.owner.failed or urgency(leader) == min(map(urgency, flight))
        finished += flight
    kept = [one for one in rows if not one.owner.failed]
    assert sorted(map(id, finished)) == sorted(map(id, kept))  # none lost, none twice
