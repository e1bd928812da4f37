"""aiokafka's producer of one transactional id, on a connection that it shares with others.

The constraints of aiokafka (0.14):

- A producer opens connections of its own, and a worker has a transactional id for each of its partitions.
- An error in a transaction leaves the producer unusable: it is replaced. The successor's start aborts the transaction.
- `send_offsets_to_transaction` names the group and no member of it (no KIP-447). So a transactional id belongs to one
  input partition: starting its producer fences the partition's earlier owner.

To go, it needs a producer of several transactions at a time, or of one for all partitions of a member by KIP-447.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeGuard

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, ProducerClosed, ProducerFenced
from aiokafka.producer.transaction_manager import TransactionState

from penstock.producer.aiokafka_internals.producer import RecordBatch

_BATCH_BYTES = 960 * 1024  # below the usual message.max.bytes of a broker, 1 MiB
_REQUEST_BYTES = 16 * 1024 * 1024
_ABORT_S = 2.0


class PartitionBatch(Protocol):
    """Records for one partition."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def builder(self) -> RecordBatch: ...


class BatchRefused(Exception):
    """The broker refused batches of a transaction, which cannot be committed any more."""

    def __init__(self, refused: Sequence[tuple[Any, BaseException]]) -> None:
        """`refused`: batches, as they were given to `commit`."""
        super().__init__(repr(refused[0][1]))
        self.refused = refused


class TransactionalProducer(AIOKafkaProducer):  # type: ignore[misc]  # aiokafka has no type information
    """One transaction at a time. After any error of `commit` it can only be stopped."""

    def __init__(
        self, options: Mapping[str, Any], carrier: AIOKafkaProducer, transactional_id: str, timeout_s: float
    ) -> None:
        """`carrier` is a connected producer of these options, whose connections this one uses."""
        super().__init__(
            **options,
            transactional_id=transactional_id,
            transaction_timeout_ms=int(timeout_s * 1000),
            acks="all",
            max_batch_size=_BATCH_BYTES,
            max_request_size=_REQUEST_BYTES,
        )
        self._timeout_s = timeout_s
        self.client = self._sender.client = carrier.client
        self._metadata = self._message_accumulator._cluster = carrier.client.cluster

    async def start(self) -> None:
        """Fence earlier producers of the id; their open transaction is aborted. Waits for the coordinator.

        Raises KafkaError where a retry does not help, such as a missing ACL.
        """
        await self._sender.start()

    async def commit(
        self, batches: Sequence[PartitionBatch], source: TopicPartition, offset: int, metadata: str, group_id: str
    ) -> None:
        """Write the batches and commit the offset, or neither.

        Raises:
            BatchRefused, TopicAuthorizationFailedError: nothing is committed.
            ProducerFenced, or an error that it caused: another worker has the partition.
            Exception: whether it is committed is not known.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                await self.begin_transaction()
                sent = [await self._send(batch) for batch in batches]
                outcomes = await self._outcomes(sent)
                failed = [(one, error) for one, error in zip(batches, outcomes, strict=True) if _is_error(error)]
                if failed:
                    fenced = [error for _, error in failed if is_fenced(error)]
                    raise fenced[0] if fenced else BatchRefused(failed)
                await self.send_offsets_to_transaction({source: (offset, metadata)}, group_id)
                await self.commit_transaction()
        except Exception as error:
            failure = self._cause() or error
        else:
            return
        raise failure

    async def _outcomes(self, sent: "Sequence[asyncio.Future[object]]") -> Sequence[object]:
        """Wait for the batches. Raises what fails the transaction.

        The offset is sent after them: a broker asks the coordinator about both, and drops one of two questions about
        the same transaction. The producer would send that part again after a backoff of 200 ms.
        """
        outcomes, failed = asyncio.gather(*sent, return_exceptions=True), self._txn_manager.wait_for_transaction_end()
        await asyncio.wait([outcomes, failed], return_when=asyncio.FIRST_COMPLETED)
        if failed.done():  # before its end: a topic is denied, or the producer is fenced
            failed.result()
        return outcomes.result()

    def _cause(self) -> BaseException | None:
        """Why the transaction failed, which the call that fails first does not always say."""
        waiter = self._txn_manager._transaction_waiter
        cause: BaseException | None = waiter.exception() if waiter is not None and waiter.done() else None
        return cause

    async def _send(self, batch: PartitionBatch) -> "asyncio.Future[object]":
        future: asyncio.Future[object] = await self.send_batch(batch.builder, batch.topic, partition=batch.partition)
        future.add_done_callback(_retrieve)
        return future

    async def abort(self) -> None:
        """Abort the open transaction, if there is one and the broker answers soon; else its timeout aborts it."""
        if self._txn_manager.state in (TransactionState.IN_TRANSACTION, TransactionState.ABORTABLE_ERROR):
            with contextlib.suppress(KafkaError, TimeoutError):
                async with asyncio.timeout(_ABORT_S):
                    await self.abort_transaction()

    async def stop(self) -> None:
        """End, without touching the connection."""
        self._closed = True
        self._message_accumulator.fail_all(ProducerClosed())
        await self._sender.close()
        self._cause()  # retrieved, or asyncio warns of it


def is_fenced(error: BaseException | None) -> bool:
    """Whether another producer has the transactional id."""
    return is_caused_by(error, ProducerFenced)


def is_caused_by(error: BaseException | None, kind: type[KafkaError]) -> bool:
    """Whether the error, or what the sender task has died of, is of this kind."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__
    return error is not None


def _is_error(outcome: object) -> TypeGuard[BaseException]:
    return isinstance(outcome, BaseException)


def _retrieve(future: "asyncio.Future[object]") -> None:
    if not future.cancelled():
        future.exception()  # or asyncio warns of it where the transaction has failed before
