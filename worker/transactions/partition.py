"""One input partition: answers wait until all earlier records have theirs, and are committed with the offset behind."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter

import structlog
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, TopicAuthorizationFailedError

from penstock.producer.transport.connection import disconnect
from penstock.producer.transport.replaceable_producer import BAD_DESTINATION, TOO_LARGE
from penstock.worker.kafka import commit_metadata
from penstock.worker.kafka.offsets import OffsetTracker, Progress
from penstock.worker.replies.outlet import Answer
from penstock.worker.transactions.batches import Batches, DestinationRefused
from penstock.worker.transactions.producer import BatchRefused, TransactionalProducer, is_fenced
from penstock.worker.transactions.window import Window

_FULL = 1000  # records: the window is committed before its time
_RETRY_S = 0.5
_STOP_S = 2.0
_DONE = attrgetter("done")

log = structlog.get_logger("penstock.transactions")


class PartitionLost(Exception):
    """Another worker commits this partition."""


class PartitionTransactions:
    """Transactions of one partition, one after another, from its assignment to its revocation."""

    def __init__(
        self,
        source: TopicPartition,
        offsets: OffsetTracker,
        make_producer: Callable[[], TransactionalProducer],
        ask_committed: Callable[[], Awaitable[Progress | None]],
        *,
        carrier: AIOKafkaProducer,
        group_id: str,
        window_s: float,
    ) -> None:
        """`ask_committed` asks the broker what is committed. `carrier` is connected, and knows topics."""
        self._source = source
        self._offsets = offsets
        self._make_producer = make_producer
        self._ask_committed = ask_committed
        self._group_id = group_id
        self._window_s = window_s
        self._producer: TransactionalProducer | None = None
        self._batches = Batches(carrier)
        self._window = Window()
        self._committed: int | None = None  # offset of the last commit, this owner's or an earlier one's
        self._in_doubt: tuple[Sequence[int], int] | None = None  # of a transaction that may have been committed
        self._changed = asyncio.Event()
        self._is_full = asyncio.Event()
        self._committing = asyncio.Lock()

    async def acquire(self) -> None:
        """Fence the partition's earlier owner. Waits for the coordinator. Raises what a retry does not mend."""
        producer = self._make_producer()
        try:
            await producer.start()
        except BaseException:
            await disconnect(producer, _STOP_S)
            raise
        self._producer = producer

    def begin(self, committed: Progress | None) -> None:
        """Answers will come. `committed` was read after `acquire`."""
        self._committed = None if committed is None else committed.offset

    def put(self, topic: str, partition: int | None, answers: Iterable[Answer]) -> list[Answer]:
        """Hold answers for a transaction. Returns those that are not to be sent: their records have others."""
        first = self._committed or 0
        fresh: list[Answer] = []
        late: list[Answer] = []
        for answer in answers:
            (late if answer.origin.original.offset < first else fresh).append(answer)
        late += self._window.put(topic, partition, fresh)
        self._changed.set()
        if len(self._window) >= _FULL:
            self._is_full.set()
        return late

    async def run(self) -> None:
        """Commit windows until cancelled. Raises PartitionLost."""
        while True:
            await self._changed.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_full.wait(), self._window_s)
            await self.commit()

    async def commit(self) -> None:
        """Commit all that is answered up to the first record without an answer. Raises PartitionLost."""
        async with self._committing:
            while True:
                self._changed.clear()
                self._is_full.clear()
                offsets, end = self._offsets.prefix(self._source, self._window.is_answered)
                if not offsets and (self._committed is None or end.offset <= self._committed):
                    return
                try:
                    await self._attempt(offsets, end)
                except DestinationRefused as refused:
                    self._refuse(refused.answers, refused.error)
                except PartitionLost:
                    raise
                except Exception as error:  # aiokafka raises AssertionError, too, where a producer has failed
                    if is_fenced(error):
                        raise PartitionLost("another producer has its transactional id") from error
                    log.warning("transaction_failed", partition=self._name, error=repr(error), retry_s=_RETRY_S)
                    await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        """Abort what is open. Answers that are left are dropped: the partition's next owner makes them again."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.abort()
            await disconnect(producer, _STOP_S)
        complete(self._window.take_all(), None)

    async def _attempt(self, offsets: Sequence[int], end: Progress) -> None:
        """Commit these records' answers, or find out that an earlier attempt has."""
        if self._producer is None:
            await self._recover()
            return
        batches = await self._batches.make(self._producer, self._window.of(offsets))
        self._in_doubt = offsets, end.offset
        try:
            metadata = commit_metadata.encode(*end)
            await self._producer.commit(batches, self._source, end.offset, metadata, self._group_id)
        except Exception as error:  # of a cancelled attempt, `close` aborts the transaction
            producer, self._producer = self._producer, None
            await disconnect(producer, _STOP_S)
            self._raise_refusal(error)
            raise
        self._batches.grow()
        self._finish()

    async def _recover(self) -> None:
        """Replace the producer. Raises PartitionLost if another worker has committed meanwhile."""
        await self.acquire()
        committed = await self._ask_committed()
        offset = None if committed is None else committed.offset
        if self._in_doubt is not None and offset == self._in_doubt[1]:
            self._finish()
        elif offset != self._committed:
            await self.close()
            raise PartitionLost(f"its committed offset is {offset}, and was {self._committed}")
        self._in_doubt = None

    def _finish(self) -> None:
        """The transaction in doubt is committed."""
        if self._in_doubt is None:
            raise RuntimeError("No transaction was committed. This is a bug.")
        (offsets, self._committed), self._in_doubt = self._in_doubt, None
        complete(self._window.take(offsets), None)

    def _raise_refusal(self, error: Exception) -> None:
        """Raise DestinationRefused if the error is one of destinations or sizes, which no retry mends."""
        if isinstance(error, TopicAuthorizationFailedError):
            raise DestinationRefused(self._batches.to_topics(error.args[0]), error) from error
        for batch, failure in error.refused if isinstance(error, BatchRefused) else ():
            if isinstance(failure, BAD_DESTINATION):
                raise DestinationRefused(batch.answers, failure) from error
            if isinstance(failure, TOO_LARGE) and self._batches.shrink(batch):
                too_large = MessageSizeTooLargeError(f"{batch.topic} takes no record of this size.")
                raise DestinationRefused(batch.answers, too_large) from error

    def _refuse(self, answers: Sequence[Answer], error: KafkaError) -> None:
        """Tell the senders of these answers, who may put others in their place."""
        for answer in answers:
            self._window.discard(answer)
        complete(answers, error)
        self._changed.set()

    @property
    def _name(self) -> str:
        return f"{self._source.topic}-{self._source.partition}"


def complete(answers: Sequence[Answer], error: KafkaError | None) -> None:
    """Call `done` of answers. One failing callback does not block the others."""
    for done, group in groupby(answers, _DONE):
        try:
            done(list(group), error)
        except Exception:
            log.exception("done_failed", detail="This is a bug.")
