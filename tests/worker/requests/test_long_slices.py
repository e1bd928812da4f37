"""Long slices are processed one at a time beside the others, small ones first, and none that would be late."""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.worker.requests.long_slices import LongSlices
from penstock.worker.requests.record import PendingRecord, RecordState

LONG, SHORT = 256 * 1024, 1000
SECONDS_A_BYTE = 1e-6


class Processing:
    """Slices of which each takes a microsecond a byte by its own clock, and the long ones end when the test says so."""

    def __init__(self) -> None:
        self.now = 0.0
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.may_end = asyncio.Event()

    async def __call__(self, records: Sequence[PendingRecord]) -> None:
        offset = records[0].original.offset
        self.begun.append(offset)
        if records[0].num_bytes > SHORT:
            await self.may_end.wait()
        self.now += SECONDS_A_BYTE * records[0].num_bytes
        self.ended.append(offset)

    async def until(self, count: int) -> None:
        """Wait until so many slices have ended."""
        while len(self.ended) < count:  # noqa: ASYNC110 — one turn of the event loop after another
            await asyncio.sleep(0)

    @property
    def num_underway(self) -> int:
        return len(self.begun) - len(self.ended)


def in_time(records: Sequence[PendingRecord], wait_s: float) -> bool:
    return False


def long_slices(processing: Processing, reject_late: Any = in_time) -> LongSlices:
    return LongSlices(processing, reject_late, lambda: processing.now)


def slice_of(make_record: Any, offset: int, size: int, *, bulk: bool = False) -> list[PendingRecord]:
    record = PendingRecord(make_record(bytes(size), offset=offset), ("requests", 0), bulk)
    record.state = RecordState.ADMITTED
    return [record]


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize("senders", [1, 4, 5, 64])
async def test_a_short_slice_meets_one_long_one_at_most_however_many_wait(make_record: Any, senders: int) -> None:
    processing = Processing()
    slices = long_slices(processing)
    for offset in range(senders):
        await asyncio.wait_for(slices(slice_of(make_record, offset, LONG)), 60)
        await turns()
        assert processing.num_underway == 1
        await asyncio.wait_for(slices(slice_of(make_record, 1000 + offset, SHORT)), 60)
        assert processing.ended[-1] == 1000 + offset  # at once
    processing.may_end.set()
    async with asyncio.timeout(300):
        while len(processing.ended) < 2 * senders:
            await asyncio.sleep(0)
            assert processing.num_underway <= 1


async def test_small_ones_overtake_with_no_more_bytes_than_that_of_the_one_they_overtake(make_record: Any) -> None:
    processing = Processing()
    slices = long_slices(processing)
    sizes = itertools.chain([4 * LONG, 4 * LONG], itertools.repeat(LONG))
    for offset, size in zip(range(4), sizes, strict=False):
        await slices(slice_of(make_record, offset, size))
        await turns()
    processing.may_end.set()
    async with asyncio.timeout(300):
        for offset in range(4, 12):  # small ones that come one after the other, for ever
            await processing.until(offset - 3)
            await slices(slice_of(make_record, offset, LONG))
    assert processing.begun[0] == 0
    overtaken_by = processing.begun[1 : processing.begun.index(1)]
    assert {2, 3} <= set(overtaken_by)
    assert len(overtaken_by) * LONG <= 4 * LONG


async def test_a_slice_that_would_wait_beyond_its_deadline_is_rejected_when_it_comes(make_record: Any) -> None:
    processing, waits = Processing(), list[float]()

    def reject_late(records: Sequence[PendingRecord], wait_s: float) -> bool:
        waits.append(wait_s)
        return wait_s > 3 * LONG * SECONDS_A_BYTE

    slices = long_slices(processing, reject_late)
    processing.may_end.set()
    await slices(slice_of(make_record, 0, LONG))
    await turns()  # its speed is known now
    processing.may_end.clear()
    for offset in range(1, 20):
        await slices(slice_of(make_record, offset, LONG))
        await turns()
    assert waits[:2] == [0.0, 0.0]
    assert waits[2:5] == pytest.approx([LONG * SECONDS_A_BYTE * ahead for ahead in (1, 2, 3)])
    processing.may_end.set()
    async with asyncio.timeout(300):
        await processing.until(5)
    await turns()
    assert processing.ended == [0, 1, 2, 3, 4]  # the memory that waits is bounded by the deadlines


async def test_slices_that_wait_are_given_back_and_the_one_underway_if_it_must(make_record: Any) -> None:
    processing = Processing()
    slices = long_slices(processing)
    given = [slice_of(make_record, offset, LONG) for offset in range(3)]
    for one in given:
        await slices(one)
    await turns()
    assert slices.take_back(begun=False) == [given[1][0], given[2][0]]
    assert slices.take_back(begun=True) == [given[0][0]]
    processing.may_end.set()
    await turns()
    assert (processing.begun, processing.ended) == ([0], [])
    await slices(slice_of(make_record, 3, LONG))
    await turns()
    assert processing.ended == [3]


async def test_records_that_have_answers_are_not_given_back(make_record: Any) -> None:
    processing = Processing()
    slices = long_slices(processing)
    [record] = one = slice_of(make_record, 0, LONG)
    await slices(one)
    await turns()
    record.state = RecordState.ANSWERED
    assert slices.take_back(begun=True) == []


async def test_a_bulk_slice_is_waited_for(make_record: Any) -> None:
    processing = Processing()
    waiting = asyncio.create_task(long_slices(processing)(slice_of(make_record, 0, LONG, bulk=True)))
    await turns()
    assert not waiting.done()
    processing.may_end.set()
    await asyncio.wait_for(waiting, 60)


async def test_a_failure_beside_reaches_the_event_loop(make_record: Any) -> None:
    async def fail(records: Sequence[PendingRecord]) -> None:
        raise ValueError("a bug")

    caught: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.append(context["exception"]))
    await LongSlices(fail, in_time)(slice_of(make_record, 0, LONG))
    await turns()
    assert [str(error) for error in caught] == ["a bug"]
