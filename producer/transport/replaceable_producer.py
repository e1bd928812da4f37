"""An idempotent producer that is replaced after a failure. The constraints of aiokafka (0.14) are dealt with here:

- Records are numbered when their batch is sent. After a batch that the broker did not take, every later batch of the
  partition is out of order. The numbers are taken back where the broker is known to have seen none of them. Elsewhere
  a new producer starts with new numbers.
- The numbers become negative after 2³¹ records of one partition, which fails a batch.
- A sender task that has ended fails every later send (aiokafka issues 907, 1004).
- `stop` of a producer with batches underway may never end, or leave its connections open.
"""

import asyncio
from collections.abc import Callable

import structlog
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from aiokafka.producer.message_accumulator import BatchBuilder

from penstock.producer.caller_errors import KafkaUnreachable
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.connection import connect, disconnect

TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
BAD_DESTINATION = (InvalidTopicError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError)
_STOP_S = 2.0
_RETIRE_S = 10.0  # for the batches that a replaced producer has underway to other partitions

log = structlog.get_logger("penstock.outbox")


class ReplaceableProducer:
    """The producer in use, and replaced ones with batches underway."""

    def __init__(self, cluster: KafkaCluster, make: Callable[[], AIOKafkaProducer]) -> None:
        self.current: AIOKafkaProducer | None = None  # None before `start` and after `stop`
        self._cluster = cluster
        self._make = make
        self._broken: AIOKafkaProducer | None = None  # its numbers are not those that the broker expects
        self._replacing = asyncio.Lock()
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect, and log that the broker is waited for. Raises KafkaUnreachable and KafkaRefused."""
        self.current = await connect(self._cluster, self._make)

    async def stop(self) -> None:
        """Disconnect, within a few seconds. Batches underway are dropped."""
        if self.current is not None:
            producer, self.current = self.current, None
            await disconnect(producer, _STOP_S)
        for task in self._retiring:
            task.cancel()
        await asyncio.gather(*self._retiring, return_exceptions=True)

    async def send(self, producer: AIOKafkaProducer, batch: BatchBuilder, topic: str, partition: int) -> None:
        """Send a batch and wait for its acknowledgement. Raises what aiokafka raises; call `replace` then.

        At most one batch of a partition may be underway.
        """
        source = TopicPartition(topic, partition)
        acknowledged = await producer.send_batch(batch, topic, partition=partition)
        sent = producer._message_accumulator._batches[source][-1]
        try:
            await acknowledged
        except (*TOO_LARGE, *BAD_DESTINATION):
            if sent.retry_count == 1:
                producer._txn_manager.increment_sequence_number(source, -batch.record_count())
            else:  # the broker may have written the first attempt, and would take the next batch for a copy of it
                self._broken = producer
            raise
        except Exception:
            self._broken = producer
            raise

    async def replace(self, failed: AIOKafkaProducer | None) -> None:
        """Replace a producer that has failed, if it is the current one and cannot go on. Waits for the broker."""
        async with self._replacing:
            is_current = failed is not None and self.current is failed
            if not is_current or not (failed is self._broken or _is_dead(failed)):
                return
            try:
                self.current = await connect(self._cluster, self._make)
            except (KafkaError, KafkaUnreachable) as error:  # the next batch fails as well, and retries this
                log.warning("producer_not_replaced", error=repr(error))
                return
            log.warning("producer_replaced")
            retiring = asyncio.create_task(_retire(failed))
            self._retiring.add(retiring)
            retiring.add_done_callback(self._retiring.discard)


async def _retire(producer: AIOKafkaProducer) -> None:
    """Let the batches to other partitions end, then fail those that are left: they are sent again by the new one."""
    try:
        await asyncio.wait((asyncio.create_task(producer.flush()),), timeout=_RETIRE_S)
    finally:
        producer._message_accumulator.fail_all(KafkaConnectionError("The producer was replaced."))
        await disconnect(producer, _STOP_S)
        await producer.client.close()


def _is_dead(producer: AIOKafkaProducer) -> bool:
    task = producer._sender.sender_task
    return task is None or task.done()
