"""Back-pressure: each of the four counts can fill the worker, and each lets it go on; bulk never takes it all."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.kafka.backpressure import Held

MIB = 1024 * 1024
BULK = "requests.bulk"


class Record:
    def __init__(self, value: bytes | None = b"", topic: str = "requests") -> None:
        self.value = value
        self.topic = topic


def hold(held: Any, count: str, amount: int, topic: str = "requests") -> None:
    """As much of one thing, and as little as can be of the others."""
    match count:
        case "records":
            for _ in range(amount):
                held.take(Record(topic=topic))
        case "rows":
            held.add_rows(Record(topic=topic), amount)
        case "request_bytes":
            held.take(Record(bytes(amount), topic))
        case "reply_bytes":
            held.reply_bytes += amount


BOUNDS = [("records", 100), ("rows", 800), ("request_bytes", 256 * MIB), ("reply_bytes", 64 * MIB)]


@pytest.mark.parametrize(("count", "bound"), BOUNDS)
def test_each_count_alone_fills_it_and_a_quarter_must_be_free_again(count: str, bound: int) -> None:
    for amount, state in [(bound, (True, False)), (bound - 1, (False, False)), (bound * 3 // 4 - 1, (False, True))]:
        held = Held(100, BULK)
        hold(held, count, amount)
        assert (held.is_full(), held.has_room()) == state


@pytest.mark.parametrize(("count", "bound"), BOUNDS)
def test_bulk_fills_its_half_and_leaves_the_other_to_online(count: str, bound: int) -> None:
    for amount, state in [
        (bound // 2, (True, False)),
        (bound // 2 - 1, (False, False)),
        (bound * 3 // 8 - 1, (False, True)),
    ]:
        held = Held(100, BULK)
        hold(held, count, amount, BULK)
        assert (held.is_full(bulk=True), held.has_room(bulk=True)) == state
        assert (held.is_full(), held.has_room()) == (False, True)


@pytest.mark.parametrize(("count", "bound"), BOUNDS[:3])
def test_more_bulk_than_its_half_does_not_keep_online_out(count: str, bound: int) -> None:
    held = Held(100, BULK)
    hold(held, count, bound * 3, BULK)  # as one fetch may bring
    assert (held.is_full(bulk=True), held.is_full(), held.has_room(), held.can_admit()) == (True, False, True, True)
    hold(held, count, bound // 2)
    assert held.is_full()


@pytest.mark.parametrize(("count", "bound"), BOUNDS)
def test_what_online_holds_stops_bulk_only_when_everything_is_full(count: str, bound: int) -> None:
    held = Held(100, BULK)
    hold(held, count, bound - 1)
    assert held.is_full(bulk=True) == (count == "reply_bytes")  # whose, is not known
    hold(held, count, 1)
    assert held.is_full(bulk=True)


def test_admission_waits_for_rows_and_replies_and_never_for_records_that_wait_for_it() -> None:
    held: Any = Held(2, BULK)
    for _ in range(500):
        held.take(Record(bytes(MIB), BULK))
    assert (held.can_admit(), held.can_admit(bulk=True)) == (True, True)
    held.add_rows(Record(topic=BULK), 8)
    assert (held.can_admit(), held.can_admit(bulk=True)) == (True, False)
    held.add_rows(Record(), 8)
    assert (held.can_admit(), held.can_admit(bulk=True)) == (False, False)
    held.drop_rows(Record(topic=BULK), 8)
    assert (held.can_admit(), held.can_admit(bulk=True)) == (True, True)
    held.reply_bytes = 64 * MIB
    assert (held.can_admit(), held.can_admit(bulk=True)) == (False, False)


@given(st.lists(st.tuples(st.binary(max_size=9) | st.none(), st.sampled_from(["requests", BULK]))))
def test_what_is_taken_and_let_go_leaves_nothing(values: list[tuple[bytes | None, str]]) -> None:
    held: Any = Held(1, BULK)
    records = [Record(value, topic) for value, topic in values]
    for record in records:
        held.take(record)
        held.add_rows(record, 3)
    assert held.records == len(values)
    for record in reversed(records):
        held.drop_rows(record, 3)
        held.let_go(record)
    assert (held.records, held.is_full(bulk=True), held.has_room(bulk=True)) == (0, False, True)
