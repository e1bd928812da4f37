"""The answers of a transaction as batches for the partitions of their topics."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from aiokafka.errors import KafkaError, LeaderNotAvailableError

from penstock.producer.aiokafka_internals.producer import BAD_DESTINATION, FailoverProducer, RecordBatch
from penstock.producer.aiokafka_internals.transactional_producer import TransactionalProducer
from penstock.producer.transport.topic_directory import TopicDirectory
from penstock.producer.wire.topics import dead_letter_topic
from penstock.worker.replies.outlet import OutAnswer
from penstock.worker.transactions.reply_leaders import STALL_S, LeaderMissing, ReplyLeaders, is_answering
from penstock.worker.transactions.waiting_answers import Outgoing

_BATCH_RECORDS = 10_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Carrier:
    """A connected producer whose connections several partitions share, and the topics that it knows."""

    producer: FailoverProducer
    topics: TopicDirectory = field(default_factory=TopicDirectory)
    leaders: ReplyLeaders = field(default_factory=ReplyLeaders)


@dataclass(frozen=True, slots=True)
class TransactionBatch:
    """Answers for one partition of a reply or dead-letter topic."""

    topic: str
    partition: int
    builder: RecordBatch
    answers: Sequence[OutAnswer]


class DestinationRefused(Exception):
    """Answers cannot be written where they are to go."""

    def __init__(self, *refusals: tuple[Sequence[OutAnswer], KafkaError]) -> None:
        super().__init__(*[repr(error) for _, error in refusals])
        self.refusals = refusals


class TransactionBatches:
    """Makes the batches of one transaction after another."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._at_most: dict[tuple[str, int], int] = {}  # records a batch, where the broker has refused one for its size
        self._last: list[TransactionBatch] = []

    async def make(self, producer: TransactionalProducer, outgoing: Iterable[Outgoing]) -> list[TransactionBatch]:
        """Raises DestinationRefused, LeaderMissing, and KafkaError if no broker is there to be asked."""
        by_topic: dict[str, list[Outgoing]] = {}
        for one in outgoing:
            by_topic.setdefault(one.topic, []).append(one)
        self._last = []
        for topic, spread in await _together(self._by_partition(*one) for one in by_topic.items()):
            for partition, answers in spread.items():
                self._last += self._fill(producer, topic, partition, answers)
        await self._check_leaders()
        return self._last

    async def _check_leaders(self) -> None:
        client, missing = self._carrier.producer.client, None
        for batch in self._last:
            missing_s = await self._carrier.leaders.missing_s(client, batch.topic, batch.partition)
            if missing_s is None:
                continue
            missing = LeaderMissing(f"{batch.topic}-{batch.partition} has no leader")
            is_letter = batch.topic == dead_letter_topic(batch.answers[0].origin.original.topic)
            if missing_s >= STALL_S and not is_letter:  # letters wait, as they are the last resort
                raise DestinationRefused((batch.answers, LeaderNotAvailableError(str(missing))))
        if missing is not None:
            raise missing

    async def _by_partition(self, topic: str, outgoing: Sequence[Outgoing]) -> tuple[str, dict[int, deque[OutAnswer]]]:
        """The answers to one topic, with its name. Raises as `make`."""
        producer, topics = self._carrier.producer, self._carrier.topics
        try:
            known = await topics.partitions(producer, topic)
        except BAD_DESTINATION as error:
            raise DestinationRefused(([one.answer for one in outgoing], error)) from error
        spread: dict[int, deque[OutAnswer]] = {}
        for _, partition, answer in outgoing:
            if partition is None:
                partition = answer.partition(len(known))
            spread.setdefault(partition, deque()).append(answer)
        await _together(self._check_partition(topic, *one) for one in spread.items() if one[0] not in known)
        return topic, spread

    async def _check_partition(self, topic: str, partition: int, answers: Sequence[OutAnswer]) -> None:
        try:
            await self._carrier.topics.check_partition(self._carrier.producer, topic, partition)
        except BAD_DESTINATION as error:
            raise DestinationRefused((answers, error)) from error

    def _fill(
        self, producer: TransactionalProducer, topic: str, partition: int, answers: deque[OutAnswer]
    ) -> list[TransactionBatch]:
        at_most = self._at_most.get((topic, partition), _BATCH_RECORDS)
        batches = []
        while answers:
            builder, taken = producer.create_batch(), list[OutAnswer]()
            while answers and len(taken) < at_most and _append(builder, answers[0]):
                taken.append(answers.popleft())
            batches.append(TransactionBatch(topic, partition, builder, taken))
        return batches

    async def are_brokers_answering(self) -> bool:
        """Whether the cluster is there."""
        return await is_answering(self._carrier.producer.client)

    def shrink(self, batch: TransactionBatch) -> bool:
        """The broker has refused a batch for its size. True if it holds one answer, which is then at fault."""
        self._at_most[batch.topic, batch.partition] = max(1, len(batch.answers) // 2)
        return len(batch.answers) == 1

    def grow(self) -> None:
        """The last batches were taken. Grown slowly: each batch beyond the topic's limit costs a transaction."""
        self._at_most = {
            destination: at_most + at_most // 8 + 1
            for destination, at_most in self._at_most.items()
            if at_most < _BATCH_RECORDS
        }

    def to_topics(self, topics: Collection[str]) -> list[OutAnswer]:
        """The answers of the last batches that go to these topics."""
        return [answer for batch in self._last if batch.topic in topics for answer in batch.answers]


def _append(builder: RecordBatch, answer: OutAnswer) -> bool:
    """Whether the batch has room. Raises DestinationRefused if aiokafka cannot encode the answer."""
    try:
        added = answer.append_to(builder)
    except Exception as error:
        wrapped = KafkaError(f"{error!r} in a transaction. This is a bug.")
        raise DestinationRefused(([answer], wrapped)) from error
    return added is not None


async def _together(calls: Iterable[Awaitable[T]]) -> list[T]:
    """The results of calls that run at the same time: to find that a topic is missing takes 10 s, a partition 1 s.

    Raises one DestinationRefused for all of theirs, or else the first error.
    """
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    refused = [refusal for one in outcomes if isinstance(one, DestinationRefused) for refusal in one.refusals]
    if refused:
        raise DestinationRefused(*refused)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]
