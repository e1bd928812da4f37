"""Partitions that a request names within a session: all, or those that have another offset than the last one asked."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.producer.aiokafka_internals.fetch_session import FetchSession, Offsets

ALL: Offsets = {"online": {0: 5, 1: 6, 2: 7}, "bulk": {0: 1, 1: 1}}
SMALL, LARGE = 64 * 1024, 64 * 1024 + 1
SESSION = 77


def moved(partition: int, offset: int, offsets: Offsets = ALL) -> Offsets:
    moved = copy.deepcopy(offsets)
    moved["online"][partition] = offset
    return moved


def settled() -> FetchSession:
    """After the answer that has made the session."""
    session = FetchSession()
    for _ in range(4):
        assert session.request(ALL) == (0, -1, ALL)  # none is worth making yet
        session.answered(0, 0, SMALL)
    assert session.request(ALL) == (0, 0, ALL)
    session.answered(SESSION, 0, SMALL)
    return session


def test_a_session_is_told_of_the_offsets_that_have_changed() -> None:
    session = settled()
    assert session.request(ALL) == (SESSION, 1, {})
    session.answered(SESSION, 0, 20)
    assert session.request(moved(1, 9)) == (SESSION, 2, {"online": {1: 9}})
    session.answered(SESSION, 0, 20)
    assert session.request(moved(1, 3)) == (SESSION, 3, {"online": {1: 3}})


def test_a_large_answer_is_followed_by_requests_that_name_all_in_their_order() -> None:
    session = settled()
    session.request(ALL)
    session.answered(SESSION, 0, LARGE)
    for asked_of in (SESSION, 0, 0, 0):  # the first one ends the session
        assert session.request(ALL) == (asked_of, -1, ALL)
        session.answered(0, 0, SMALL)
    assert session.request(ALL) == (0, 0, ALL)


@pytest.mark.parametrize("others", [{"online": ALL["online"]}, moved(3, 0), {**ALL, "third": {0: 0}}])
def test_other_partitions_are_named_without_the_session(others: Offsets) -> None:
    session = settled()
    assert session.request(others) == (SESSION, -1, others)


def test_a_request_without_an_answer_is_followed_by_one_that_names_all() -> None:
    session = settled()
    session.request(ALL)
    assert session.request(moved(1, 9)) == (SESSION, -1, moved(1, 9))


@pytest.mark.parametrize(("error", "asked_of"), [(70, 0), (71, SESSION)])
def test_a_session_that_the_broker_refuses_is_left(error: int, asked_of: int) -> None:
    """Of error 70 it does not know the session; any other leaves it there."""
    session = settled()
    session.request(ALL)
    session.answered(0, error, 20)
    assert session.request(ALL) == (asked_of, -1, ALL)


def test_a_broker_that_makes_no_session_is_asked_for_all() -> None:
    session = FetchSession()
    for epoch in (-1, -1, -1, -1, 0, 0):
        assert session.request(ALL) == (0, epoch, ALL)
        session.answered(0, 0, SMALL)


def test_few_partitions_are_named_without_a_session() -> None:
    session = FetchSession()
    for _ in range(9):
        assert session.request({"replies": {3: 5}}) == (0, -1, {"replies": {3: 5}})
        session.answered(0, 0, SMALL)


def test_a_session_is_left_with_the_assignment() -> None:
    session = settled()
    session.leave()
    assert session.request(ALL) == (SESSION, -1, ALL)


def test_the_epoch_begins_anew_where_kafkas_numbers_end() -> None:
    session = settled()
    session._epoch = 2**31 - 1
    assert session.request(ALL).epoch == 1


class Broker:
    """A broker's state of its one session, by KIP-227."""

    def __init__(self) -> None:
        self._num_sessions = 0
        self._epoch = 0
        self._partitions: Offsets = {}

    def forget(self) -> None:
        """It was started again."""
        self._num_sessions += 1

    def takes(self, session: int, epoch: int, named: Offsets) -> tuple[int, int, Offsets]:
        """The session and the error of its answer, and what it reads."""
        if epoch <= 0:
            self._num_sessions += 1
            self._epoch, self._partitions = 1, copy.deepcopy(named)
            return (0 if epoch else self._num_sessions), 0, named
        if session != self._num_sessions:
            return 0, 70, {}
        if epoch != self._epoch:
            return 0, 71, {}
        self._epoch += 1
        for topic, offsets in named.items():
            self._partitions[topic] |= offsets
        return session, 0, self._partitions


PARTITIONS = st.dictionaries(
    st.sampled_from(["online", "bulk"]), st.dictionaries(st.integers(0, 5), st.integers(0, 9), min_size=1)
)
HAPPENS = st.sampled_from(["answer", "answer", "answer", "request lost", "answer lost", "broker starts", "left"])


@given(st.lists(st.tuples(PARTITIONS, st.integers(1, 9), HAPPENS, st.sampled_from([SMALL, SMALL, SMALL, LARGE]))))
def test_a_broker_reads_what_is_asked_for_whatever_is_lost(turns: list[tuple[Offsets, int, str, int]]) -> None:
    session, broker = FetchSession(), Broker()
    for offsets, repeated, happens, num_bytes in turns:
        for number in range(repeated):
            asked = {topic: {one: at + number for one, at in of.items()} for topic, of in offsets.items()}
            request = session.request(asked)
            answered, error, read = broker.takes(*request)
            assert error or read == asked
            session.answered(answered, error, num_bytes)
        if happens == "broker starts":
            broker.forget()
        elif happens == "left":
            session.leave()
        elif happens.endswith("lost"):
            lost = session.request(offsets)
            if happens == "answer lost":
                broker.takes(*lost)
