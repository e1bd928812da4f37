"""One input partition: answers wait until all earlier records have theirs, and are committed with the offset behind."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, OffsetMetadataTooLargeError, TopicAuthorizationFailedError

from penstock.producer.aiokafka_internals.producer import BAD_DESTINATION, BAD_RECORD, record_refused
from penstock.producer.aiokafka_internals.transactional_producer import (
    BatchRefused,
    TransactionalProducer,
    is_caused_by,
    is_fenced,
)
from penstock.producer.transport.connection import disconnect
from penstock.producer.transport.outbox import is_of_records
from penstock.worker.kafka.progress import commit_metadata
from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress
from penstock.worker.kafka.progress.partition_marks import PartitionMarks
from penstock.worker.replies.outlet import AnswerDropped, OutAnswer
from penstock.worker.transactions.reply_leaders import STALL_S, LeaderMissing
from penstock.worker.transactions.transaction_batches import Carrier, DestinationRefused, TransactionBatches
from penstock.worker.transactions.transaction_plan import PartitionLost, TransactionContent, TransactionPlan

_FULL = 1000  # records: the window is committed before its time
_RETRY_S = 0.5
_STOP_S = 2.0
_DONE = attrgetter("done")

log = structlog.get_logger("penstock.transactions")


class PartitionTransactions:
    """Transactions of one partition, one after another, from its assignment to its revocation."""

    def __init__(
        self,
        source: TopicPartition,
        offsets: OffsetTracker,
        marks: PartitionMarks,
        make_producer: Callable[[], TransactionalProducer],
        ask_committed: Callable[[], Awaitable[PartitionProgress]],
        *,
        carrier: Carrier,
        group_id: str,
        window_s: float,
    ) -> None:
        """`ask_committed` asks the broker what is committed."""
        self._source = source
        self._plan = TransactionPlan(source, offsets, marks)
        self._make_producer = make_producer
        self._ask_committed = ask_committed
        self._group_id = group_id
        self._window_s = window_s
        self._producer: TransactionalProducer | None = None
        self._batches = TransactionBatches(carrier)
        self._changed = asyncio.Event()
        self._is_full = asyncio.Event()
        self._committing = asyncio.Lock()
        self._step = asyncio.Event()  # a transaction was committed, or no other will be
        self._is_closed = False

    async def acquire(self) -> None:
        """Fence the partition's earlier owner. Waits for the coordinator. Raises what a retry does not mend."""
        self._producer = await self._start_producer()

    async def _start_producer(self) -> TransactionalProducer:
        producer = self._make_producer()
        try:
            await producer.start()
        except BaseException:
            await disconnect(producer, _STOP_S)
            raise
        return producer

    def begin(self, committed: PartitionProgress) -> None:
        """Answers will come. `committed` was read after `acquire`."""
        self._plan.take_over(committed)

    def put(self, topic: str, partition: int | None, answers: Iterable[OutAnswer]) -> list[OutAnswer]:
        """Hold answers for a transaction. Returns those that are not to be sent."""
        late = self._plan.put(topic, partition, answers)
        self._changed.set()
        if self._plan.num_answered >= _FULL:
            self._is_full.set()
        return late

    def hasten(self) -> None:
        """The partition's mark has changed: commit without waiting for a window."""
        self._changed.set()
        self._is_full.set()

    async def commit_mark(self) -> bool:
        """Wait until the mark is committed. False if the partition is given up before."""
        while not self._is_closed and not self._plan.is_marked:
            if self._step.is_set():
                self._step = asyncio.Event()
            await self._step.wait()
        return not self._is_closed

    async def run(self) -> None:
        """Commit a transaction a window until cancelled. Raises PartitionLost.

        What is answered during a transaction waits for a window of its own: back to back, transactions would be the
        smaller and the more the busier the worker is.
        """
        while True:
            await self._changed.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_full.wait(), self._window_s)
            await self.commit(at_most=1)

    async def commit(self, *, at_most: float = math.inf) -> None:
        """Commit all that is answered up to the first record without an answer, or so many transactions of it.

        Raises PartitionLost.
        """
        async with self._committing:
            while (content := self._next()) is not None:
                at_most -= await self._try(content)
                if at_most < 1:
                    break
            if content is not None and self._plan.num_answered:
                self._changed.set()

    def _next(self) -> TransactionContent | None:
        self._check_open()
        self._changed.clear()
        self._is_full.clear()
        complete(self._plan.take_stale(), AnswerDropped())
        return self._plan.next()

    async def _try(self, content: TransactionContent) -> bool:
        """Whether it was committed. If not, what is left of it after refusals comes again. Raises PartitionLost."""
        try:
            return await self._attempt(content)
        except DestinationRefused as refused:
            for answers, error in refused.refusals:
                self._refuse(answers, error)
            return False
        except LeaderMissing:
            pass
        except PartitionLost:
            raise
        except Exception as error:  # aiokafka raises AssertionError, too, where a producer has failed
            if is_fenced(error):
                raise PartitionLost("another producer has its transactional id") from error
            log.warning("transaction_failed", partition=self._name, error=repr(error), retry_s=_RETRY_S)
        await asyncio.sleep(_RETRY_S)
        return False

    async def close(self) -> None:
        """Abort what is open. Answers that are left are dropped: the partition's next owner makes them again."""
        self._is_closed = True
        self._step.set()
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.abort()
            await disconnect(producer, _STOP_S)
        complete(self._plan.take_all(), AnswerDropped())

    async def _attempt(self, content: TransactionContent) -> bool:
        """Commit this and return true, or find out whether an earlier attempt has."""
        if self._producer is None:
            await self._recover()
            return False
        batches = await self._batches.make(self._producer, self._plan.answers(content))
        self._check_open()
        self._plan.begin(content)
        try:
            await self._producer.commit(batches, self._source, content.offset, content.metadata, self._group_id)
        except Exception as error:  # of a cancelled attempt, `close` aborts the transaction
            producer, self._producer = self._producer, None
            await disconnect(producer, _STOP_S)
            if is_caused_by(error, OffsetMetadataTooLargeError):
                log.warning("commit_metadata_refused", consequence=commit_metadata.NO_METADATA)
                self._plan.drop_metadata()
            self._raise_refusal(error)
            raise
        self._batches.grow()
        self._finished(self._plan.finish())
        return True

    async def _recover(self) -> None:
        """Replace the producer.

        Raises PartitionLost if another worker has committed meanwhile, or if the last transaction does not end though
        brokers answer. Then the answers are dropped: what is held for this partition must not fill the worker.
        """
        try:
            async with asyncio.timeout(STALL_S) as limit:
                producer = await self._start_producer()
        except TimeoutError as error:
            if not limit.expired() or not await self._batches.are_brokers_answering():
                raise
            raise PartitionLost("its last transaction does not end") from error
        try:
            committed = await self._ask_committed()
            self._check_open()
            self._finished(self._plan.settle(committed))
        except BaseException:
            await disconnect(producer, _STOP_S)
            raise
        self._producer = producer

    def _check_open(self) -> None:
        """Asked after every wait: the answers of a closed partition are gone, and its offset must stay where it is."""
        if self._is_closed:
            raise PartitionLost("it was given up")

    def _finished(self, answers: Sequence[OutAnswer]) -> None:
        complete(answers, None)
        self._step.set()

    def _raise_refusal(self, error: Exception) -> None:
        """Raise DestinationRefused if the error is one of destinations or records, which no retry mends."""
        if isinstance(error, TopicAuthorizationFailedError):
            raise DestinationRefused((self._batches.to_topics(error.args[0]), error)) from error
        for batch, failure in error.refused if isinstance(error, BatchRefused) else ():
            if isinstance(failure, BAD_DESTINATION):
                raise DestinationRefused((batch.answers, failure)) from error
            is_bad = isinstance(failure, BAD_RECORD) and is_of_records(failure, batch.answers)
            if is_bad and self._batches.shrink(batch):
                raise DestinationRefused((batch.answers, record_refused(failure, batch.topic))) from error

    def _refuse(self, answers: Sequence[OutAnswer], error: KafkaError) -> None:
        """Tell the senders of these answers, which may put others in their place."""
        for answer in answers:
            self._plan.discard(answer)
        complete(answers, error)
        self._changed.set()

    @property
    def _name(self) -> str:
        return f"{self._source.topic}-{self._source.partition}"


def complete(answers: Sequence[OutAnswer], error: KafkaError | None) -> None:
    """Call `done` of answers. One failing callback does not block the others."""
    for done, group in groupby(answers, _DONE):
        try:
            done(list(group), error)
        except Exception:
            log.exception("done_failed", detail="This is a bug.")
