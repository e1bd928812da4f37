"""Sender of records: batched, and retried until the broker acknowledges them, by one idempotent producer.

Clients send requests with it, workers replies and dead letters. Records of one topic-partition are sent in the order of
`put`. The next batch fills while one is in flight, so batches grow with the load and a lone record is sent at once.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from operator import attrgetter
from typing import Any, NamedTuple

import structlog
from aiokafka.errors import InvalidTimestampError, KafkaError

from penstock.producer.aiokafka_internals.producer import (
    BAD_DESTINATION,
    BAD_RECORD,
    FailoverProducer,
    RecordBatch,
    record_refused,
)
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.connection import BACKOFF_MS, METADATA_MAX_AGE_MS
from penstock.producer.transport.replaceable_producer import ReplaceableProducer
from penstock.producer.transport.topic_directory import TopicDirectory
from penstock.producer.wire.headers import partition_for

# Errors of the record or of its destination, which are final. All others are retried without limit.
REFUSED = (*BAD_RECORD, *BAD_DESTINATION)

_BATCH_BYTES = 960 * 1024  # below the usual message.max.bytes of a broker, 1 MiB
_BATCH_RECORDS = 10_000
_RETRY_S = 0.5
_FAIL_S = 2.0  # in which a batch ends that was made to fail, and its producer is replaced

log = structlog.get_logger("penstock.outbox")

Destination = tuple[str, int | None]  # topic and partition; None: chosen by each record's key
_DONE = attrgetter("done")


@dataclass(slots=True)  # not frozen: that would double the cost of making one
class OutRecord:
    """One record to send.

    `done` is called on the event loop, once for each record. Its arguments are the records that share this callable and
    ended together, and their outcome: None if they are acknowledged, else one of REFUSED, the error of
    `Outbox.withdraw`, or a KafkaError that says "This is a bug.". Only `Outbox.stop` drops a record without calling it.
    """

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
    done: Callable[[Sequence[Any], KafkaError | None], None]  # Any: the subclass that the caller has put

    @property
    def timestamp_ms(self) -> int | None:
        """Unix time of the record; None: when it is sent."""
        return None

    def append_to(self, batch: RecordBatch) -> object:
        """None if the batch has no room. Raises what aiokafka does of a record that it cannot encode."""
        return batch.append(timestamp=self.timestamp_ms, key=self.key, value=self.value, headers=self.headers)

    def partition(self, num_partitions: int) -> int:
        """Its partition in a topic that has so many, where the caller names none."""
        return partition_for(self.key or b"", num_partitions)


class _Withdrawal(NamedTuple):
    """Records that are not to be sent any more."""

    of: Callable[[OutRecord], bool]
    error: KafkaError


class Outbox:
    """Owner of one producer. `put` never blocks: callers bound the number of unacknowledged records."""

    def __init__(self, cluster: KafkaCluster, *, client_id: str) -> None:
        self._cluster = cluster
        self._client_id = client_id
        self._producer = ReplaceableProducer(cluster, lambda: self._make_producer())
        self._topics = TopicDirectory()
        self._at_most: dict[Destination, int] = {}  # records a batch, where the broker has refused one for its size
        self._waiting: dict[Destination, deque[OutRecord]] = {}
        self._senders: dict[Destination, asyncio.Task[None]] = {}
        self._sending: dict[Destination, int] = {}  # records of the batches that are on their way
        self._withdrawn: dict[Destination, _Withdrawal] = {}  # until these batches end: some of their records
        self._landed = asyncio.Event()  # one of those has ended
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Connect, and log that the broker is waited for. Raises KafkaUnreachable and KafkaRefused."""
        await self._producer.start()

    def put(self, topic: str, partition: int | None, records: Sequence[OutRecord]) -> None:
        """Queue records, at least one. A partition of None is chosen by each record's key."""
        destination = (topic, partition)
        waiting = self._waiting.get(destination)
        if waiting is not None:
            waiting.extend(records)
            return
        self._waiting[destination] = deque(records)
        self._idle.clear()
        sender = self._senders[destination] = asyncio.create_task(self._send_all(destination))
        sender.add_done_callback(_raise_failure)

    async def partitions(self, topic: str) -> int:
        """Number of partitions of a topic. Asks the broker, which may create the topic.

        Raises:
            UnknownTopicOrPartitionError: the topic is missing, and the broker does not create it.
        """
        producer = self._producer.current
        if producer is None:
            raise RuntimeError("Outbox.partitions before start. This is a bug.")
        return len(await self._topics.partitions(producer, topic))

    def known_partitions(self, topic: str) -> int:
        """Number of partitions of a topic as of the last refresh of metadata, 30 s ago at most; 0 if not known."""
        producer = self._producer.current
        return 0 if producer is None else len(producer.client.cluster.partitions_for_topic(topic) or ())

    async def withdraw(self, is_gone: Callable[[OutRecord], bool], error: KafkaError, timeout_s: float) -> bool:
        """Complete the queued records of which `is_gone` is true with this error, and send none of them any more.

        Waits for batches with such records that are on their way. Those of a batch that fails are withdrawn, too.
        Returns false if one had not ended after `timeout_s`: the producer's batches were then made to fail.
        """
        gone = _Withdrawal(is_gone, error)
        for destination, waiting in list(self._waiting.items()):
            num_sending = self._sending.get(destination, 0)
            if any(map(is_gone, islice(waiting, num_sending))):
                self._withdrawn[destination] = gone
            _withdraw(waiting, num_sending, gone)
        if await self._have_landed(timeout_s):
            return True
        if (producer := self._producer.current) is not None:
            producer.fail_batches("Records of a batch were withdrawn.")
            await self._have_landed(_FAIL_S)
        return False

    async def _have_landed(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self._withdrawn:
                    self._landed.clear()
                    await self._landed.wait()
        return not self._withdrawn

    async def flush(self) -> None:
        """Wait until all records, also those put meanwhile, are acknowledged or refused."""
        await self._idle.wait()

    async def stop(self, timeout_s: float = 5.0) -> None:
        """Send queued records for at most `timeout_s`, then disconnect. Unacknowledged records are dropped."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.flush(), timeout_s)
        for sender in self._senders.values():
            sender.cancel()
        await asyncio.gather(*self._senders.values(), return_exceptions=True)
        await self._producer.stop()

    def _make_producer(self) -> FailoverProducer:
        return FailoverProducer(
            **self._cluster.arguments,
            client_id=self._client_id,
            enable_idempotence=True,
            acks="all",
            max_batch_size=_BATCH_BYTES,
            max_request_size=16 * 1024 * 1024,
            retry_backoff_ms=BACKOFF_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )

    async def _send_all(self, destination: Destination) -> None:
        """Send batches to one destination, one after another, until its queue is empty."""
        waiting = self._waiting[destination]
        try:
            while waiting:
                await self._send_some(destination, waiting)
                if (gone := self._withdrawn.pop(destination, None)) is not None:
                    _withdraw(waiting, 0, gone)
                    self._landed.set()
        finally:
            del self._waiting[destination]
            del self._senders[destination]
            if not self._waiting:
                self._idle.set()

    async def _send_some(self, destination: Destination, waiting: deque[OutRecord]) -> None:
        """Send one batch. A record that leaves `waiting` was completed, or queued for another destination."""
        topic, partition = destination
        producer = self._producer.current
        try:
            if producer is None:
                raise RuntimeError("Outbox.put before start. This is a bug.")
            if partition is None:
                self._spread(topic, len(await self._topics.partitions(producer, topic)), waiting)
            else:
                await self._topics.check_partition(producer, topic, partition)
                await self._send_batch(producer, topic, partition, waiting)
        except BAD_DESTINATION as error:
            _complete(waiting, len(waiting), error)
            await self._producer.replace(producer)
        except (KafkaError, OSError) as error:
            log.warning("send_failed", topic=topic, partition=partition, error=repr(error), retry_s=_RETRY_S)
            await asyncio.sleep(_RETRY_S)
            await self._producer.replace(producer)
        except Exception as error:
            _fail(waiting, len(waiting), error)

    def _spread(self, topic: str, num_partitions: int, waiting: deque[OutRecord]) -> None:
        by_partition: dict[int, list[OutRecord]] = {}
        while waiting:
            record = waiting.popleft()
            by_partition.setdefault(record.partition(num_partitions), []).append(record)
        for partition, records in by_partition.items():
            self.put(topic, partition, records)

    async def _send_batch(
        self, producer: FailoverProducer, topic: str, partition: int, waiting: deque[OutRecord]
    ) -> None:
        """Send the records that fit one batch, and complete them when they are acknowledged or finally refused."""
        destination = (topic, partition)
        at_most = self._at_most.get(destination, _BATCH_RECORDS)
        batch = producer.create_batch()
        size = fill(batch, waiting, at_most)
        try:
            if size:
                self._sending[destination] = size
                await producer.deliver(batch, topic, partition)
        except BAD_RECORD as error:
            if not is_of_records(error, list(waiting)[:size]):
                raise
            # The batch is too large, or has a record that the broker refuses: the only one is at fault.
            self._at_most[destination] = max(1, size // 2)
            if size == 1:
                _complete(waiting, 1, record_refused(error, topic))
            await self._producer.replace(producer)
            return
        except (KafkaError, OSError):
            raise
        except Exception as error:
            _fail(waiting, size, error)
            await self._producer.replace(producer)
            return
        finally:
            self._sending.pop(destination, None)
        if at_most < _BATCH_RECORDS:
            # Grown slowly: each batch beyond the topic's limit costs a round trip.
            self._at_most[destination] = at_most + at_most // 8 + 1
        _complete(waiting, size, None)


def is_of_records(error: BaseException, records: Iterable[OutRecord]) -> bool:
    """Whether an error of BAD_RECORD is of the records of its batch, so that they are refused again.

    Records without a time of their own have that of the batch, which is another one when they are sent again.
    """
    return not isinstance(error, InvalidTimestampError) or any(one.timestamp_ms is not None for one in records)


def _raise_failure(sender: "asyncio.Task[None]") -> None:
    """Tell the event loop's exception handler of a sender that has died: its records have no outcome."""
    if not sender.cancelled():
        sender.result()


def fill(batch: RecordBatch, waiting: deque[OutRecord], at_most: int) -> int:
    """Put the first records into a batch and return their number. They stay in `waiting` until acknowledged.

    A record that aiokafka cannot encode is completed with an error when it is first in the queue.
    """
    size = 0
    try:
        for record in waiting:
            added = record.append_to(batch)
            if added is None:
                break
            size += 1
            if size == at_most:
                break
    except Exception as error:
        if size == 0:
            _fail(waiting, 1, error)
    return size


def _withdraw(waiting: deque[OutRecord], num_kept: int, gone: _Withdrawal) -> None:
    """Complete those behind the first `num_kept` that are gone."""
    kept = list(islice(waiting, num_kept))
    taken: deque[OutRecord] = deque()
    for record in islice(waiting, num_kept, None):
        (taken if gone.of(record) else kept).append(record)
    waiting.clear()
    waiting.extend(kept)
    _complete(taken, len(taken), gone.error)


def _complete(waiting: deque[OutRecord], count: int, error: KafkaError | None) -> None:
    """Remove the first records and call their `done`. One failing callback does not block the others."""
    for done, records in groupby([waiting.popleft() for _ in range(count)], _DONE):
        try:
            done(list(records), error)
        except Exception:
            log.exception("done_failed", detail="This is a bug.")


def _fail(waiting: deque[OutRecord], count: int, error: Exception) -> None:
    """Complete the first records with an unexpected error, wrapped as a KafkaError."""
    log.error("send_failed", error=repr(error), records=count, detail="This is a bug.", exc_info=error)
    wrapped = KafkaError(f"{error!r} in the outbox. This is a bug.")
    wrapped.__cause__ = error
    _complete(waiting, count, wrapped)
