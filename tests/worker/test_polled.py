"""What was polled: online and bulk apart, each in its order, in slices that are never too much at once."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.kafka.fetch_buffer import Polled

MakeRecord = Callable[..., Any]
BULK = "requests.bulk"


@pytest.fixture
def polled() -> Polled:
    return Polled(BULK)


@pytest.mark.parametrize(("topic", "bulk", "at_once"), [("requests", False, 256), (BULK, True, 32)])
def test_slices_are_bounded_and_keep_the_order(
    polled: Polled, make_record: MakeRecord, topic: str, bulk: bool, at_once: int
) -> None:
    records = [make_record(offset=offset, topic=topic) for offset in range(600)]
    polled.put(records[:300])
    polled.put(records[300:])
    first = polled.take_slice(bulk=bulk)
    assert first == records[:at_once]
    assert polled.take_slice(bulk=not bulk) == []
    taken = list(first)
    while polled.waits(bulk=bulk):
        taken += polled.take_slice(bulk=bulk)
    assert taken == records


@pytest.mark.parametrize(("topic", "bulk"), [("requests", False), (BULK, True)])
def test_a_record_larger_than_a_slice_comes_alone(
    polled: Polled, make_record: MakeRecord, topic: str, bulk: bool
) -> None:
    large = make_record(bytes(1 << 20), topic=topic)
    small = make_record(b"x", topic=topic)
    polled.put([large, small])
    assert polled.take_slice(bulk=bulk) == [large]
    assert polled.take_slice(bulk=bulk) == [small]


def test_everything_can_be_taken_back(polled: Polled, make_record: MakeRecord) -> None:
    online, bulk = [make_record(offset=1)], [make_record(offset=2, topic=BULK)]
    polled.put(bulk)
    polled.put(online)
    assert polled.take_all() == [*online, *bulk]
    assert (polled.waits(bulk=False), polled.waits(bulk=True), polled.take_all()) == (False, False, [])


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=50))
def test_no_slice_is_empty_while_records_wait(sizes: list[int]) -> None:
    class Record:
        topic = "requests"

        def __init__(self, size: int) -> None:
            self.value = bytes(size)

    polled: Any = Polled(BULK)
    records = [Record(size) for size in sizes]
    polled.put(records)
    taken: list[Record] = []
    while polled.waits(bulk=False):
        found = polled.take_slice(bulk=False)
        assert found
        assert sum(len(record.value) for record in found[:-1]) < 64 * 1024
        taken += found
    assert taken == records
