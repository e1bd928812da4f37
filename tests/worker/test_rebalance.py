"""A worker whose partitions are taken while it polls, with a stand-in for aiokafka's consumer that follows a script."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException

from penstock.engine import EngineLanes, NullEngine
from penstock.scheduler import LearnedCost, fit_cost_table
from penstock.worker import WorkerSettings
from penstock.worker.kafka import consumer
from penstock.worker.requests.record import KafkaRecord
from penstock.worker.resolved_settings import resolve
from penstock.worker.worker import Worker

A, B = TopicPartition("penstock.requests.tiny", 0), TopicPartition("penstock.requests.tiny", 1)
MakeRecord = Callable[..., Any]
Polled = dict[TopicPartition, list[Any]]


class Group:
    """Each `getmany` is what the test has put in `script`; rebalances come when the script says so."""

    def __init__(self) -> None:
        self.script: list[Callable[[], Awaitable[Polled]]] = []
        self.owned = frozenset({A, B})
        self.offset = 0  # committed, of every partition
        self.sought: list[tuple[TopicPartition, int]] = []

    async def start(self) -> None: ...

    def subscribe(self, _: list[str], *, listener: Any) -> None:
        self.listener = listener

    async def getmany(self, *_: TopicPartition, timeout_ms: int) -> Polled:
        return await self.script.pop(0)()

    def assignment(self) -> list[TopicPartition]:
        return sorted(self.owned)

    def pause(self, *_: TopicPartition) -> None: ...

    async def committed(self, _: TopicPartition) -> int:
        return self.offset

    def seek(self, source: TopicPartition, offset: int) -> None:
        self.sought.append((source, offset))

    async def rebalance(self, owned: set[TopicPartition]) -> None:
        await self.listener.on_partitions_revoked(self.owned)
        self.owned = frozenset(owned)
        await self.listener.on_partitions_assigned(self.owned)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    group = Group()
    monkeypatch.setattr(consumer, "AIOKafkaConsumer", lambda **_: group)
    monkeypatch.setattr(consumer, "_RETRY_S", 0.0)
    return group


@pytest.fixture
async def worker(group: Group) -> AsyncIterator[Worker]:
    engine = NullEngine(name="tiny")
    given = WorkerSettings(model="null", lanes=1)  # type: ignore[call-arg]  # the others have defaults
    settings = resolve(given, engine.info)
    cost = LearnedCost(fit_cost_table([((8,), 1e-3)], padded=False))
    async with contextlib.AsyncExitStack() as stack:
        lanes = EngineLanes(engine, 1)
        stack.push_async_callback(lanes.close)
        worker = Worker(settings, engine, lanes, cost, tokenizer=None, cache=None)
        await worker._consumer.start()
        await group.listener.on_partitions_assigned({A, B})
        yield worker


@pytest.fixture
def admitted(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Partition and offset of each record that the worker has begun; they are never answered."""
    admitted: list[tuple[int, int]] = []

    async def admit(records: Sequence[KafkaRecord]) -> None:
        admitted.extend((record.partition, record.offset) for record in records)

    monkeypatch.setattr(worker, "_admit", admit)
    return admitted


async def nothing() -> Polled:
    return {}


async def unreadable() -> Polled:
    raise CorruptRecordException("Invalid CRC")


async def test_what_was_polled_as_its_partition_was_taken_is_left_to_the_next_owner(
    group: Group, worker: Worker, admitted: list[tuple[int, int]], make_record: MakeRecord
) -> None:
    rebalances: list[asyncio.Task[None]] = []

    async def taken_at_once() -> Polled:
        rebalances.append(asyncio.create_task(group.rebalance({B})))  # runs before anyone learns of the records
        return {A: [make_record(offset=7)]}

    group.script = [taken_at_once, nothing]
    await worker._turn()
    await asyncio.gather(*rebalances)
    await worker._turn()
    assert admitted == []
    assert (worker._held.records, worker._offsets.num_unfinished) == (0, 0)


async def test_what_was_polled_of_one_partition_is_left_when_a_rebalance_comes_with_the_next(
    group: Group, worker: Worker, admitted: list[tuple[int, int]], make_record: MakeRecord
) -> None:
    """After an error each partition is polled alone, and the second may wait for a rebalance."""

    async def of_a() -> Polled:
        return {A: [make_record(offset=7)]}

    async def of_b() -> Polled:
        await group.rebalance({B})
        return {B: [make_record(offset=2, partition=1)]}

    group.script = [unreadable, of_a, of_b]
    await worker._turn()
    assert admitted == [(1, 2)]
    assert (worker._held.records, worker._offsets.num_unfinished) == (1, 1)


async def test_a_partition_that_comes_back_is_sought_back_to_where_the_group_is(
    group: Group, worker: Worker, admitted: list[tuple[int, int]], make_record: MakeRecord
) -> None:
    """And not to the end of what was polled of it, and left, before: what lies between would be lost."""

    async def of_a() -> Polled:
        return {A: [make_record(offset=7)]}

    async def of_b() -> Polled:
        await group.rebalance({A})
        return {}

    group.script = [unreadable, of_a, of_b, unreadable, nothing]
    group.offset = 3
    await worker._turn()
    group.sought.clear()
    await worker._turn()
    assert group.sought == [(A, 3)]
    assert admitted == []
