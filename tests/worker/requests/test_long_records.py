"""Long records are processed one at a time beside the others, small ones first."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.worker.requests.long_records import LongRecords
from penstock.worker.requests.record import LONG_BYTES, PendingRecord, RecordState

LONG = 4 * LONG_BYTES
SECONDS_A_BYTE = 1e-6


class Processing:
    """Each record takes a microsecond a byte by its own clock, and ends when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.may_end = asyncio.Event()

    async def __call__(self, records: Sequence[PendingRecord]) -> None:
        [record] = records
        self.begun.append(record.original.offset)
        await self.may_end.wait()
        await asyncio.sleep(0)  # so that others can come before the next one begins
        self.now += SECONDS_A_BYTE * record.num_bytes
        self.ended.append(record.original.offset)

    async def until(self, count: int) -> None:
        """Wait until so many records have ended."""
        while len(self.ended) < count:  # noqa: ASYNC110 — one turn of the event loop after another
            await asyncio.sleep(0)


def long_records(processing: Processing) -> LongRecords:
    return LongRecords(processing, lambda: processing.now)


def admitted(make_record: Any, offset: int, size: int = LONG, *, bulk: bool = False) -> PendingRecord:
    record = PendingRecord(make_record(bytes(size), offset=offset), ("requests", 0), bulk)
    record.state = RecordState.ADMITTED
    return record


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("size", "bulk", "is_long"), [(LONG, False, True), (LONG, True, False), (LONG_BYTES, False, False)]
)
def test_long_are_online_records_that_are_taken_alone(make_record: Any, size: int, bulk: bool, is_long: bool) -> None:
    assert admitted(make_record, 0, size, bulk=bulk).is_long == is_long


@pytest.mark.parametrize("senders", [1, 4, 5, 64])
async def test_a_short_record_meets_one_long_one_at_most_however_many_wait(make_record: Any, senders: int) -> None:
    processing = Processing()
    records = long_records(processing)
    for offset in range(senders):
        records.add(admitted(make_record, offset))
        await turns()
        assert len(processing.begun) == 1
    processing.may_end.set()
    async with asyncio.timeout(300):
        while len(processing.ended) < senders:
            await asyncio.sleep(0)
            assert len(processing.begun) - len(processing.ended) <= 1


async def test_small_ones_overtake_with_no_more_bytes_than_that_of_the_one_they_overtake(make_record: Any) -> None:
    processing = Processing()
    records = long_records(processing)
    sizes = itertools.chain([4 * LONG, 4 * LONG], itertools.repeat(LONG))
    for offset, size in zip(range(4), sizes, strict=False):
        records.add(admitted(make_record, offset, size))
        await turns()
    processing.may_end.set()
    async with asyncio.timeout(300):
        for offset in range(4, 12):  # small ones that come one after the other, for ever
            await processing.until(offset - 3)
            records.add(admitted(make_record, offset))
    assert processing.begun[0] == 0
    overtaken_by = processing.begun[1 : processing.begun.index(1)]
    assert {2, 3} <= set(overtaken_by)
    assert len(overtaken_by) * LONG <= 4 * LONG


async def test_the_wait_is_predicted_from_the_bytes_ahead_and_the_speed_so_far(make_record: Any) -> None:
    processing = Processing()
    records = long_records(processing)
    processing.may_end.set()
    assert records.wait_s(admitted(make_record, 0)) == 0.0
    records.add(admitted(make_record, 0))
    await turns()  # its speed is known now
    processing.may_end.clear()
    waits = []
    for offset in range(1, 5):
        waits.append(records.wait_s(admitted(make_record, offset)))
        records.add(admitted(make_record, offset))
        await turns()
    assert waits == pytest.approx([LONG * SECONDS_A_BYTE * ahead for ahead in range(4)])
    assert records.wait_s(admitted(make_record, 5, LONG_BYTES + 1)) == pytest.approx(LONG * SECONDS_A_BYTE)  # overtakes


async def test_unanswered_records_that_wait_are_given_back_and_the_one_underway_if_it_must(make_record: Any) -> None:
    processing = Processing()
    records = long_records(processing)
    given = [admitted(make_record, offset) for offset in range(3)]
    for one in given:
        records.add(one)
    await turns()
    given[2].state = RecordState.ANSWERED
    assert records.take_back(begun=False) == given[1:2]
    assert records.take_back(begun=True) == given[:1]
    processing.may_end.set()
    await turns()
    assert (processing.begun, processing.ended) == ([0], [])
    records.add(admitted(make_record, 3))
    await turns()
    assert processing.ended == [3]


async def test_a_failure_beside_reaches_the_event_loop(make_record: Any) -> None:
    async def fail(records: Sequence[PendingRecord]) -> None:
        raise ValueError("a bug")

    caught: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.append(context["exception"]))
    LongRecords(fail).add(admitted(make_record, 0))
    await turns()
    assert [str(error) for error in caught] == ["a bug"]
