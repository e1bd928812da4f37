"""Back-pressure: each of the four counts can fill the worker, and each lets it go on; bulk never takes it all."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.kafka.backpressure import Backpressure

MIB = 1024 * 1024


def hold(held: Backpressure, count: str, amount: int, *, bulk: bool = False) -> None:
    """Add to one count only."""
    match count:
        case "records":
            held.add_records(amount, 0, bulk=bulk)
        case "sequences":
            held.add_sequences(amount, bulk=bulk)
        case "request_bytes":
            held.add_records(0, amount, bulk=bulk)
        case "reply_bytes":
            held.add_reply_bytes(amount)


BOUNDS = [("records", 100), ("sequences", 800), ("request_bytes", 256 * MIB), ("reply_bytes", 64 * MIB)]


@pytest.mark.parametrize(("count", "bound"), BOUNDS)
def test_each_count_alone_fills_it_and_a_quarter_must_be_free_again(count: str, bound: int) -> None:
    for amount, state in [(bound, (True, False)), (bound - 1, (False, False)), (bound * 3 // 4 - 1, (False, True))]:
        held = Backpressure(100)
        hold(held, count, amount)
        assert (held.is_full(), held.has_room()) == state


@pytest.mark.parametrize(("count", "bound"), BOUNDS)
def test_bulk_fills_its_half_and_leaves_the_other_to_online(count: str, bound: int) -> None:
    for amount, state in [
        (bound // 2, (True, False)),
        (bound // 2 - 1, (False, False)),
        (bound * 3 // 8 - 1, (False, True)),
    ]:
        held = Backpressure(100)
        hold(held, count, amount, bulk=True)
        assert (held.is_full(bulk=True), held.has_room(bulk=True)) == state
        assert (held.is_full(), held.has_room()) == (False, True)


@pytest.mark.parametrize(("count", "bound"), BOUNDS[:3])
def test_more_bulk_than_its_half_does_not_stop_online(count: str, bound: int) -> None:
    held = Backpressure(100)
    hold(held, count, bound * 3, bulk=True)  # as one fetch may bring
    assert (held.is_full(bulk=True), held.is_full(), held.has_room(), held.can_admit()) == (True, False, True, True)
    hold(held, count, bound // 2)
    assert held.is_full()


@pytest.mark.parametrize(("count", "bound"), BOUNDS)
def test_online_stops_bulk_only_when_everything_is_full(count: str, bound: int) -> None:
    held = Backpressure(100)
    hold(held, count, bound - 1)
    assert held.is_full(bulk=True) == (count == "reply_bytes")  # replies are not counted by class
    hold(held, count, 1)
    assert held.is_full(bulk=True)


def test_admission_waits_for_sequences_and_replies_and_never_for_records_that_wait_for_it() -> None:
    held = Backpressure(2)
    held.add_records(500, 500 * MIB, bulk=True)
    assert (held.can_admit(), held.can_admit(bulk=True)) == (True, True)
    held.add_sequences(8, bulk=True)
    assert (held.can_admit(), held.can_admit(bulk=True)) == (True, False)
    held.add_sequences(8, bulk=False)
    assert (held.can_admit(), held.can_admit(bulk=True)) == (False, False)
    held.add_sequences(-8, bulk=True)
    assert (held.can_admit(), held.can_admit(bulk=True)) == (True, True)
    held.add_reply_bytes(64 * MIB)
    assert (held.can_admit(), held.can_admit(bulk=True)) == (False, False)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans())))
def test_what_is_added_and_removed_leaves_nothing(records: list[tuple[int, bool]]) -> None:
    held = Backpressure(1)
    for num_bytes, bulk in records:
        held.add_records(1, num_bytes, bulk=bulk)
        held.add_sequences(3, bulk=bulk)
    assert held.num_records == len(records)
    for num_bytes, bulk in reversed(records):
        held.add_sequences(-3, bulk=bulk)
        held.add_records(-1, -num_bytes, bulk=bulk)
    assert (held.num_records, held.is_full(bulk=True), held.has_room(bulk=True)) == (0, False, True)
