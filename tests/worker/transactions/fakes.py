"""A broker's transactions in memory: transactional ids that fence, and commits with the outcomes that a test gives."""

import asyncio
from collections.abc import Sequence
from typing import Any

from aiokafka.errors import KafkaError, ProducerFenced, UnknownTopicOrPartitionError

from penstock.worker.kafka.progress.offsets import PartitionProgress, Source
from penstock.worker.kafka.progress.owner_marker import OwnerMarker
from penstock.worker.transactions.transaction_batches import TransactionBatch


class Broker:
    """Also the topics that batches are made for, with one partition each, and what knows their leaders."""

    def __init__(self) -> None:
        self.committed: dict[Source, PartitionProgress] = {}
        self.written: list[bytes] = []  # keys of the answers that are committed
        self.commits: list[tuple[int, int]] = []  # offsets, and numbers of answers, in this order
        self.outcomes: list[tuple[bool, Exception]] = []  # of the next commits: whether it happens, the error
        self.refusals: list[Exception] = []  # of the next starts of a producer
        self.epochs: dict[str, int] = {}  # of transactional ids
        self.missing: dict[str, float] = {}  # topics without a leader, and seconds since
        self.absent: set[tuple[str, int]] = set()  # partitions; a topic without the first one is absent as a whole
        self.looks: asyncio.Barrier | None = None  # at which looks for them meet
        self.stuck: set[str] = set()  # transactional ids whose last transaction does not end
        self.is_there = True  # whether any broker answers
        self.num_producers = 0
        self.is_deaf = 0  # how often the question for what is committed fails

    async def ask_committed(self, source: Source) -> PartitionProgress:
        if self.is_deaf:
            self.is_deaf -= 1
            raise KafkaError("no answer")
        return self.committed.get(source, PartitionProgress(0))

    async def partitions(self, _: object, topic: str) -> set[int]:
        if (topic, 0) in self.absent:
            await self._look_in_vain()
        return {0}

    async def check_partition(self, _: object, topic: str, partition: int) -> None:
        if (topic, partition) in self.absent:
            await self._look_in_vain()

    async def _look_in_vain(self) -> None:
        if self.looks is not None:
            await self.looks.wait()
        raise UnknownTopicOrPartitionError

    @property
    def client(self) -> "Broker":
        return self

    async def force_metadata_update(self) -> bool:
        return self.is_there

    async def missing_s(self, client: object, topic: str, partition: int) -> float | None:
        return self.missing.get(topic)


class Producer:
    """In the place of TransactionalProducer. Also the builder of its batches."""

    def __init__(self, broker: Broker, transactional_id: str = "id") -> None:
        self._broker = broker
        self._id = transactional_id
        self._epoch = 0
        broker.num_producers += 1

    async def start(self) -> None:
        if self._broker.refusals:
            raise self._broker.refusals.pop(0)
        while self._id in self._broker.stuck:  # noqa: ASYNC110 — as aiokafka, which asks again and again
            await asyncio.sleep(0)
        self._epoch = self._broker.epochs[self._id] = self._broker.epochs.get(self._id, 0) + 1

    async def stop(self) -> None: ...

    async def abort(self) -> None: ...

    def create_batch(self) -> "Producer":
        return self

    def append(self, **_: object) -> bool:
        return True

    async def commit(
        self, batches: Sequence[TransactionBatch], source: Any, offset: int, metadata: str, _: str
    ) -> None:
        happens, error = self._broker.outcomes.pop(0) if self._broker.outcomes else (True, None)
        if self._epoch != self._broker.epochs[self._id]:
            raise ProducerFenced
        if happens:
            answers = [answer for batch in batches for answer in batch.answers]
            self._broker.written += [answer.key or b"" for answer in answers]
            self._broker.commits.append((offset, len(answers)))
            _, mark, marker = metadata.partition(";")
            self._broker.committed[source] = PartitionProgress(
                offset, marker=OwnerMarker.parse(mark + marker) if mark else None
            )
        if error is not None:
            raise error
