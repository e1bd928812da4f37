"""Records whose schemas are fetched wait beside the others, and hold up nothing but what is behind them."""

import asyncio
from collections.abc import Sequence
from typing import Any

from penstock.worker.enrichment.unprepared import UnpreparedRecords
from penstock.worker.requests.record import PendingRecord
from tests.worker.conftest import FakeRecord


class Schemas:
    """A router whose records' values are the names of their schemas."""

    def __init__(self, *known: bytes) -> None:
        self.known = set(known)
        self.is_back = asyncio.Event()  # the registry

    def is_ready(self, record: PendingRecord) -> bool:
        return record.original.value in self.known

    async def prepare(self, records: Sequence[PendingRecord]) -> None:
        await self.is_back.wait()
        self.known |= {record.original.value for record in records if record.original.value}


class Held:
    """Everything between the polls and the batch queue."""

    def __init__(self) -> None:
        self.schemas, self.may_begin, self.begun = Schemas(b"old"), asyncio.Event(), list[int]()
        router: Any = self.schemas
        self.records = UnpreparedRecords(router, self._wait, self._begin)
        self._offset = 0

    async def _wait(self) -> None:
        await self.may_begin.wait()

    async def _begin(self, records: Sequence[PendingRecord]) -> None:
        self.begun += [record.original.offset for record in records]

    def poll(self, *records: tuple[bytes | None, bytes]) -> list[int]:
        """Take records with these keys and schemas. Returns the offsets of those that need not wait."""
        polled = []
        for key, schema in records:
            one = FakeRecord(schema, offset=self._offset, key=key, topic="in")
            polled.append(PendingRecord(one, ("in", 0), from_bulk_topic=False))
            self._offset += 1
        return [record.original.offset for record in self.records.hold_back(polled)]

    async def turn(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


async def test_what_is_behind_a_record_that_waits_waits_with_it() -> None:
    held = Held()
    assert held.poll(
        (b"a", b"old"), (b"a", b"new"), (b"a", b"old"), (b"b", b"old"), (None, b"new"), (None, b"old")
    ) == [
        0,
        3,
        5,
    ]
    await held.turn()
    assert held.poll((b"a", b"old"), (b"b", b"old")) == [7]
    assert held.records.num == 4
    held.may_begin.set()
    held.schemas.is_back.set()
    await held.turn()
    assert held.begun == [1, 2, 4, 6]
    assert held.records.num == 0
    assert held.poll((b"a", b"new")) == [8]


async def test_no_record_begins_beside_one_that_runs_alone() -> None:
    held = Held()
    held.poll((b"a", b"new"))
    held.schemas.is_back.set()
    await held.turn()
    assert (held.begun, held.records.num) == ([], 1)
    held.may_begin.set()
    await held.turn()
    assert (held.begun, held.records.num) == ([0], 0)
