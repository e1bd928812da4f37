"""A slice that takes long is processed beside those that come after it; a bounded number are."""

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.worker.requests.long_slices import LongSlices
from penstock.worker.requests.record import PendingRecord

LONG, SHORT = 256 * 1024, 1000


class Processing:
    """Slices that end when the test says so."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.may_end = asyncio.Event()

    async def __call__(self, records: Sequence[PendingRecord]) -> None:
        self.begun.append(records[0].original.offset)
        if records[0].num_bytes >= LONG:
            await self.may_end.wait()


def slice_of(make_record: Any, offset: int, size: int, *, bulk: bool = False) -> list[PendingRecord]:
    return [PendingRecord(make_record(bytes(size), offset=offset), ("requests", 0), bulk)]


async def test_short_slices_go_on_beside_long_ones(make_record: Any) -> None:
    processing = Processing()
    slices = LongSlices(processing)
    for offset in range(4):
        await slices(slice_of(make_record, offset, LONG))
    await slices(slice_of(make_record, 4, SHORT))
    await asyncio.sleep(0)
    assert sorted(processing.begun) == [0, 1, 2, 3, 4]
    fifth = asyncio.create_task(slices(slice_of(make_record, 5, LONG)))
    await asyncio.sleep(0.01)
    assert not fifth.done()
    processing.may_end.set()
    await asyncio.wait_for(fifth, 5)
    await asyncio.sleep(0)
    assert processing.begun[-1] == 5


async def test_a_bulk_slice_is_waited_for(make_record: Any) -> None:
    processing = Processing()
    waiting = asyncio.create_task(LongSlices(processing)(slice_of(make_record, 0, LONG, bulk=True)))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    processing.may_end.set()
    await asyncio.wait_for(waiting, 5)


async def test_a_failure_beside_reaches_the_event_loop(make_record: Any) -> None:
    async def fail(records: Sequence[PendingRecord]) -> None:
        raise ValueError("a bug")

    caught: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: caught.append(context["exception"]))
    await LongSlices(fail)(slice_of(make_record, 0, LONG))
    await asyncio.sleep(0.01)
    assert [str(error) for error in caught] == ["a bug"]
