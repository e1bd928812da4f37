"""The partitions of one worker: opened, fenced, marked and given back, each by itself."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import (
    CoordinatorNotAvailableError,
    InvalidTransactionTimeout,
    KafkaError,
    TransactionalIdAuthorizationFailed,
)
from structlog.testing import capture_logs

from penstock.producer.transport.cluster import KafkaCluster, KafkaRefused
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress, Source
from penstock.worker.kafka.progress.owner_marker import OwnerMarker
from penstock.worker.replies.outlet import AnswerDropped, OutAnswer
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.requests.quarantine import Quarantine
from penstock.worker.requests.record import PendingRecord
from penstock.worker.stop_signal import StopSignal
from penstock.worker.transactions import partition_transactions as partition_module
from penstock.worker.transactions import transactional_outbox as outbox_module
from penstock.worker.transactions.transactional_outbox import TransactionalOutbox
from tests.worker.transactions.fakes import Broker, Producer

A, B = ("penstock.requests.tiny", 0), ("penstock.requests.tiny", 1)
MakeRecord = Callable[..., Any]


class Died(Exception):
    """Stands for the end of the process."""


class Consumer:
    """As much of the consumer as an outbox uses."""

    def __init__(self, broker: Broker) -> None:
        self.committed = broker.ask_committed
        self.num_rejoined = 0

    def serve(self, owner: Any) -> None: ...

    def rejoin(self) -> None:
        self.num_rejoined += 1


class Owner:
    """A worker with `exactly_once`, from its start to its death."""

    def __init__(
        self, broker: Broker, killers: frozenset[tuple[Source, int]] = frozenset(), group_id: str = "g"
    ) -> None:
        self.broker, self.consumer = broker, Consumer(broker)
        self.offsets, self.stop = OffsetTracker(), StopSignal()
        self.ledger = RecordLedger(Backpressure(100), self.offsets, {"bulk"})
        settings: Any = SimpleNamespace(group_id=group_id, transaction_window_ms=0, transaction_timeout_ms=1000)
        cluster = KafkaCluster("nowhere:1")
        consumer: Any = self.consumer
        self.outbox = TransactionalOutbox(cluster, consumer, self.offsets, settings)
        self.quarantine = Quarantine(self.outbox, self.ledger, self.stop, lambda: True, lambda: 0)
        self.runs: list[list[tuple[int, int]]] = []
        self.poison: list[tuple[int, int]] = []
        self._killers = killers

    async def own(self, ends: dict[Source, int]) -> None:
        """Get partitions, as in `Consumer._open`."""
        if not self.outbox._carriers:
            await self.outbox.start()
        sources = set(ends)
        while sources:
            acquired = await self.outbox.acquire(sources)
            self.outbox.acquired(acquired, {one: self._taken_over(one, ends[one]) for one in acquired})
            sources -= acquired

    def _taken_over(self, source: Source, end: int) -> PartitionProgress:
        progress = self.broker.committed.get(source, PartitionProgress(0))
        return progress._replace(marker=progress.marker and progress.marker.taken_over(progress.offset, end))

    async def run(self, make_record: MakeRecord, *positions: tuple[Source, int]) -> None:
        records: list[PendingRecord] = []
        for source, offset in positions:
            records += self.ledger.receive([make_record(partition=source[1], offset=offset)])
        admitted = self.ledger.admit(records)
        if self.quarantine.trusts(admitted):
            await self._process(admitted)
        else:
            await self.quarantine.run(admitted, self._process)

    async def _process(self, records: Sequence[PendingRecord]) -> None:
        self.runs.append([(record.source[1], record.original.offset) for record in records])
        self.poison += [(r.source[1], r.original.offset) for r in records if r.is_poison]
        if any((r.source, r.original.offset) in self._killers and not r.is_poison for r in records):
            raise Died
        self.ledger.answer(records)
        for record in records:
            key = b"%d-%d" % (record.source[1], record.original.offset)
            self.outbox.put("replies", 0, [OutAnswer(key, b"", [], self._done, record)])

    def _done(self, answers: Sequence[OutAnswer], error: KafkaError | None) -> None:
        assert error is None or isinstance(error, AnswerDropped)
        self.ledger.acknowledge([answer.origin for answer in answers])

    async def die(self) -> None:
        """End without another word to the broker."""
        for task in self.outbox._running.values():
            task.cancel()
        await asyncio.sleep(0)


async def until(is_true: Callable[[], bool]) -> None:
    for _ in range(1_000_000):
        if is_true():
            return
        await asyncio.sleep(0)
    raise AssertionError("It never came.")


@pytest.fixture
async def broker(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    made = Broker()

    async def connect(*_: object) -> Broker:
        return made

    def make_producer(_cluster: object, _carrier: object, transactional_id: str, _timeout_s: float) -> Producer:
        return Producer(made, transactional_id)

    monkeypatch.setattr(outbox_module, "LAST_COMMIT_S", 60.0)
    monkeypatch.setattr(outbox_module, "connect", connect)
    monkeypatch.setattr(outbox_module, "TransactionalProducer", make_producer)
    monkeypatch.setattr(
        outbox_module, "Carrier", lambda producer: SimpleNamespace(producer=made, topics=made, leaders=made)
    )
    for module in (outbox_module, partition_module):
        monkeypatch.setattr(module, "_RETRY_S", 0.0)
    monkeypatch.setattr(outbox_module, "_WAIT_S", 0.05)
    async with asyncio.timeout(300):
        yield made


async def test_a_killer_is_run_three_times_and_costs_no_other_record_its_answer(
    broker: Broker, make_record: MakeRecord
) -> None:
    killers, ends = frozenset({(A, 2)}), {A: 5, B: 3}
    everything = [(source, offset) for source, end in ends.items() for offset in range(end)]
    runs = []
    for _ in range(3):
        owner = Owner(broker, killers)
        await owner.own(ends)
        left = [
            (one, offset)
            for one, offset in everything
            if offset >= broker.committed.get(one, PartitionProgress(0)).offset
        ]
        with pytest.raises(Died):
            await owner.run(make_record, *left)
        await owner.die()
        runs.append(owner.runs)
        assert owner.poison == []
    assert [len(some) for some in runs] == [1, 1, 3]  # all, all under named marks, and one by one
    assert runs[2] == [[(0, 0)], [(0, 1)], [(0, 2)]]
    last = Owner(broker, killers)
    await last.own(ends)
    left = [(one, offset) for one, offset in everything if offset >= broker.committed[one].offset]
    await last.run(make_record, *left)
    assert last.poison == [(0, 2)]
    last.quarantine.hand_over()
    await last.outbox.commit_last()
    assert broker.committed == {A: PartitionProgress(5), B: PartitionProgress(3)}
    assert sorted(broker.written) == sorted(b"%d-%d" % (one[1], offset) for one, offset in everything)


@pytest.mark.parametrize("error", [CoordinatorNotAvailableError(), KeyError((1, 0)), AssertionError(), OSError()])
async def test_a_partition_is_opened_whatever_fails_at_first(
    broker: Broker, make_record: MakeRecord, error: Exception
) -> None:
    """A connection that ends while several partitions use it raises more than KafkaError."""
    broker.refusals = [error, error]
    owner = Owner(broker)
    await owner.own({A: 1})
    await owner.run(make_record, (A, 0))
    await owner.outbox.commit_last()
    assert broker.written == [b"0-0"]


@pytest.mark.parametrize("error", [TransactionalIdAuthorizationFailed("id"), InvalidTransactionTimeout()])
async def test_what_no_retry_mends_is_raised(broker: Broker, error: Exception) -> None:
    broker.refusals = [error]
    with pytest.raises(KafkaRefused):
        await Owner(broker).own({A: 1, B: 1})


async def test_a_running_worker_waits_for_an_acl_that_was_taken_away(broker: Broker, make_record: MakeRecord) -> None:
    owner = Owner(broker)
    await owner.own({A: 1})
    await owner.outbox.release({A})
    broker.refusals = [TransactionalIdAuthorizationFailed("id")] * 2
    with capture_logs() as logs:
        await owner.own({A: 1, B: 1})
    denied = [one for one in logs if one["event"] == "transactions_not_opened"]
    assert ["WRITE on transactional ids with the prefix g:" in one["hint"] for one in denied] == [True, True]
    await owner.run(make_record, (A, 0), (B, 0))
    await owner.outbox.commit_last()
    assert sorted(broker.written) == [b"0-0", b"1-0"]


async def test_a_partition_whose_last_transaction_does_not_end_holds_up_no_other(
    broker: Broker, make_record: MakeRecord
) -> None:
    broker.stuck = {f"g:{A[0]}-{A[1]}"}
    owner = Owner(broker)
    owning = asyncio.create_task(owner.own({A: 1, B: 1}))
    await until(lambda: B in owner.outbox._running)
    await owner.run(make_record, (B, 0))
    await owner.outbox.commit_last()
    assert broker.written == [b"1-0"]
    assert not owning.done()
    broker.stuck = set()
    await owning
    await owner.run(make_record, (A, 0))
    await owner.outbox.commit_last()
    assert broker.written == [b"1-0", b"0-0"]


async def test_partitions_that_are_revoked_while_they_are_opened_are_let_go(broker: Broker) -> None:
    broker.stuck = {f"g:{A[0]}-{A[1]}"}
    owner = Owner(broker)
    owning = asyncio.create_task(owner.own({A: 1, B: 1}))
    await until(lambda: B in owner.outbox._running)
    owning.cancel()
    await asyncio.wait((owning,))
    await owner.outbox.release({A, B})
    assert (owner.outbox._acquiring, owner.outbox._running, owner.outbox._partitions) == ({}, {}, {})
    broker.stuck = set()
    await owner.own({A: 1, B: 1})
    assert owner.outbox._running.keys() == {A, B}


async def test_a_worker_that_is_fenced_drops_its_answers_and_joins_again(
    broker: Broker, make_record: MakeRecord
) -> None:
    first, second = Owner(broker), Owner(broker)
    await first.own({A: 2, B: 1})
    await first.run(make_record, (A, 0))
    await first.outbox.commit_last()
    await second.own({A: 2})
    await first.run(make_record, (A, 1))
    await until(lambda: first.consumer.num_rejoined > 0)
    await first.run(make_record, (B, 0))  # which is its own
    await second.run(make_record, (A, 1))
    await asyncio.gather(first.outbox.commit_last(), second.outbox.commit_last())
    assert sorted(broker.written) == [b"0-0", b"0-1", b"1-0"]
    assert first.ledger.num_unfinished == 0
    assert broker.committed[A] == PartitionProgress(2, marker=OwnerMarker())


async def test_stopping_commits_what_is_answered_and_closes_each_connection(
    broker: Broker, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    async def disconnect(producer: Broker, timeout_s: float) -> None:
        closed.append((producer, timeout_s > 0))

    monkeypatch.setattr(outbox_module, "disconnect", disconnect)
    owner = Owner(broker)
    await owner.own({A: 1})
    await owner.run(make_record, (A, 0))
    await owner.outbox.stop(60.0)
    assert broker.written == [b"0-0"]
    assert closed == [(broker, True)] * 4
    assert not owner.outbox._running


async def test_what_is_not_committed_at_a_revocation_is_answered_by_the_next_owner(
    broker: Broker, make_record: MakeRecord
) -> None:
    """As after any error of the group: an illegal generation, an unknown member, a new coordinator."""
    first = Owner(broker)
    await first.own({A: 2})
    [slow] = first.ledger.receive([make_record(partition=0, offset=0)])
    first.ledger.admit([slow])
    await first.outbox.mark({A: OwnerMarker()})
    await first.run(make_record, (A, 1))
    first.quarantine.hand_over()
    first.ledger.give_up([slow])
    await first.outbox.commit_last()
    first.ledger.forget({A})
    await first.outbox.release({A})
    assert (broker.written, broker.committed) == ([], {A: PartitionProgress(0)})
    assert (first.ledger.num_unfinished, first.ledger.num_running) == (0, 0)
    second = Owner(broker)
    await second.own({A: 2})
    assert not second.outbox.has_redelivered
    await second.run(make_record, (A, 0), (A, 1))
    await second.outbox.commit_last()
    assert broker.written == [b"0-0", b"0-1"]


async def test_no_two_groups_and_topics_share_a_transactional_id(broker: Broker) -> None:
    pairs = [("a-b", "c"), ("a", "b-c"), ("a:b", "c"), ("a", "b.c")]
    for group, topic in pairs:
        owner = Owner(broker, group_id=group)
        await owner.own({(topic, 0): 1})
        await owner.die()
    assert len(broker.epochs) == len(pairs)
