"""aiokafka's idempotent producer with the client that leaves brokers that hang, and with batches that may be refused.

The constraints of aiokafka (0.14):

- Records are numbered when their batch is sent. After a batch that the broker did not take, every later batch of the
  partition is out of order (aiokafka issue 1017). The numbers are taken back where the broker is known to have seen
  none of them. Elsewhere only a new producer goes on.
- The numbers become negative after 2³¹ records of one partition, which fails a batch.
- A sender task that has ended fails every later send (aiokafka issues 907, 1004).
- `stop` of a producer with batches underway may never end, or leave its connections open.

To go, it needs a producer that begins a new epoch of its id after a failed batch (KIP-360), and what `client.py` says.
"""

from typing import Any, TypeAlias

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    BrokerResponseError,
    InvalidTimestampError,
    InvalidTopicError,
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    kafka_errors,
)
from aiokafka.producer.message_accumulator import BatchBuilder

from penstock.producer.aiokafka_internals.client import FailoverClient
from penstock.producer.aiokafka_internals.sender import LeanSender

RecordBatch: TypeAlias = BatchBuilder  # that `create_batch` of a producer makes
TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)


class InvalidRecordError(BrokerResponseError):  # type: ignore[misc]  # aiokafka has no type information
    """A topic takes no such record: it is compacted, and the record has no key. aiokafka (0.14) has no name for it."""

    errno = 87
    message = "INVALID_RECORD"
    description = "The broker has refused a record of the batch."


kafka_errors[InvalidRecordError.errno] = InvalidRecordError
BAD_RECORD = (*TOO_LARGE, InvalidRecordError, InvalidTimestampError)  # of a batch: one record of it, or its size
BAD_DESTINATION = (InvalidTopicError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError)


class FailoverProducer(AIOKafkaProducer):  # type: ignore[misc]  # aiokafka has no type information
    """Used on one event loop."""

    client: Any
    _is_out_of_order = False  # its numbers are not those that the broker expects

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.client = self._sender.client = FailoverClient(self.client)
        self._sender.__class__ = LeanSender

    async def deliver(self, batch: RecordBatch, topic: str, partition: int) -> None:
        """Send a batch and wait for its acknowledgement. Raises what aiokafka raises; see `can_go_on` then.

        At most one batch of a partition may be underway.
        """
        source = TopicPartition(topic, partition)
        acknowledged = await self.send_batch(batch, topic, partition=partition)
        sent = self._message_accumulator._batches[source][-1]
        try:
            await acknowledged
        except (*BAD_RECORD, *BAD_DESTINATION):
            if sent.retry_count == 1:
                self._txn_manager.increment_sequence_number(source, -batch.record_count())
            else:  # the broker may have written the first attempt, and would take the next batch for a copy of it
                self._is_out_of_order = True
            raise
        except Exception:
            self._is_out_of_order = True
            raise

    @property
    def can_go_on(self) -> bool:
        """Whether further batches may be acknowledged."""
        task = self._sender.sender_task
        return not self._is_out_of_order and task is not None and not task.done()

    def fail_batches(self, reason: str) -> None:
        """End the batches that are underway with a KafkaConnectionError."""
        self._message_accumulator.fail_all(KafkaConnectionError(reason))


def record_refused(error: BaseException, topic: str) -> KafkaError:
    """The outcome of a record whose batch of one was refused with an error of BAD_RECORD."""
    if isinstance(error, TOO_LARGE):
        return MessageSizeTooLargeError(f"{topic} takes no record of this size.")
    return type(error)(f"{topic} takes no such record.")
