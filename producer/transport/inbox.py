"""Receiver of replies: one consumer on one partition of the reply topic, and a future for each expected reply.

Several clients may share a partition. A reply with an unknown correlation id is another client's, late or a duplicate,
and is dropped.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from penstock.producer.aiokafka_internals.reply_consumer import ReplyConsumer
from penstock.producer.errors import BackendError, InvalidRequest, PenstockError
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.connection import BACKOFF_MS, METADATA_MAX_AGE_MS, connect, disconnect, watch
from penstock.producer.wire.codec import decode_reply
from penstock.producer.wire.headers import CORRELATION_ID, PARTIAL
from penstock.producer.wire.messages import ErrorReply, Reply

_RETRY_S = 0.5

# Replies decoded in one turn of the event loop. Their callers can send again while the rest is decoded, so that client
# and worker run concurrently.
_SLICE_RECORDS = 64
_STOP_S = 5.0

log = structlog.get_logger("penstock.inbox")

Answer = asyncio.Future[Reply | ErrorReply]
Partial = Callable[[Reply], object]  # called with each partial reply, on the event loop


class Inbox:
    """Futures of replies by correlation id. All methods are called on the client's event loop."""

    def __init__(
        self,
        cluster: KafkaCluster,
        topic: str,
        *,
        client_id: str,
        fetch_max_wait_ms: int,
        isolation_level: str = "read_uncommitted",
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._client_id = client_id
        self._fetch_max_wait_ms = fetch_max_wait_ms
        self._isolation_level = isolation_level
        # With the deadline in monotonic seconds, and what takes partial replies.
        self._expected: dict[bytes, tuple[Answer, float, Partial | None]] = {}
        self._consumer: AIOKafkaConsumer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.partition = 0  # to which replies must be sent; valid after start

    async def start(self, num_partitions: int) -> None:
        """Seek to the end of a random partition. No reply that is sent after this returns can be missed."""
        self.partition = random.randrange(num_partitions)
        self._consumer = await connect(self._cluster, self._make_consumer)
        source = TopicPartition(self._topic, self.partition)
        self._consumer.assign([source])
        await self._consumer.seek_to_end(source)
        await self._consumer.position(source)
        running = self._read(self._consumer, source), watch(self._consumer)
        self._tasks = [asyncio.create_task(coroutine) for coroutine in running]

    async def stop(self, reason: PenstockError) -> None:
        """Fail all expected replies with `reason` and disconnect."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for correlation_id in list(self._expected):
            self.fail(correlation_id, reason)
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await disconnect(consumer, _STOP_S)

    def expect(self, correlation_id: bytes, deadline: float, partial: Partial | None = None) -> Answer:
        """Make the future of a reply. Called before its request is sent. `partial`: called until the reply is there."""
        answer: Answer = asyncio.get_running_loop().create_future()
        self._expected[correlation_id] = (answer, deadline, partial)
        return answer

    def forget(self, correlation_id: bytes) -> None:
        """Drop a reply that is no longer awaited, where none came."""
        self._expected.pop(correlation_id, None)

    def fail(self, correlation_id: bytes, error: PenstockError) -> None:
        """Fail one reply, if it is still expected."""
        answer = self._take(correlation_id)
        if answer is not None:
            answer.set_exception(error)

    def expire(self, now: float, make_error: Callable[[], PenstockError]) -> None:
        """Fail every reply whose deadline is before `now`."""
        late = [correlation_id for correlation_id, (_, deadline, _) in self._expected.items() if deadline < now]
        for correlation_id in late:
            self.fail(correlation_id, make_error())

    def _make_consumer(self) -> AIOKafkaConsumer:
        return ReplyConsumer(
            **self._cluster.arguments,
            client_id=self._client_id,
            group_id=None,
            fetch_max_wait_ms=self._fetch_max_wait_ms,
            enable_auto_commit=False,
            auto_offset_reset="earliest",  # of a reply topic that was recreated; `start` seeks to the end
            isolation_level=self._isolation_level,
            max_partition_fetch_bytes=8 * 1024 * 1024,
            retry_backoff_ms=BACKOFF_MS,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
        )

    async def _read(self, consumer: AIOKafkaConsumer, source: TopicPartition) -> None:
        """Read until cancelled. No error ends it, since later replies must still be read."""
        while True:
            try:
                await self._read_some(consumer)
            except UnicodeDecodeError:
                await self._step_over(consumer, source)
            except KafkaError as error:
                log.warning("replies_unreadable", error=repr(error), retry_s=_RETRY_S)
                await asyncio.sleep(_RETRY_S)
            except Exception:
                log.exception("replies_unreadable", detail="This is a bug.", retry_s=_RETRY_S)
                await asyncio.sleep(_RETRY_S)

    async def _read_some(self, consumer: AIOKafkaConsumer) -> None:
        fetched = await consumer.getmany(timeout_ms=1000)
        for records in fetched.values():
            for start in range(0, len(records), _SLICE_RECORDS):
                for record in records[start : start + _SLICE_RECORDS]:
                    self._receive(record)
                await asyncio.sleep(0)

    async def _step_over(self, consumer: AIOKafkaConsumer, source: TopicPartition) -> None:
        """Skip a record with a header name that is not UTF-8, which aiokafka cannot decode.

        The rest of its batch is skipped as well, because aiokafka decodes batches from their start. No worker writes
        such a record, so no reply is lost.
        """
        consumer.seek(source, await consumer.position(source))  # fetched records are read again, one by one
        skipped = 0
        while True:
            try:
                record = await consumer.getone(source)
            except UnicodeDecodeError as error:
                offset = await consumer.position(source)
                if not skipped:
                    log.warning("reply_skipped", partition=source.partition, offset=offset, error=str(error))
                skipped += 1
                consumer.seek(source, offset + 1)
            else:
                self._receive(record)
                if skipped:
                    return

    def _receive(self, record: Any) -> None:
        headers = dict(record.headers)
        correlation_id = headers.get(CORRELATION_ID, b"")
        if PARTIAL in headers:
            self._receive_partial(correlation_id, record.value)
            return
        answer = self._take(correlation_id)
        if answer is None:
            return
        try:
            answer.set_result(decode_reply(record.value))
        except InvalidRequest as error:
            log.warning("reply_unreadable", offset=record.offset, error=error.message)
            answer.set_exception(BackendError(f"The worker's answer could not be read: {error.message}"))
        except Exception as error:
            log.exception("reply_unreadable", offset=record.offset, detail="This is a bug.")
            answer.set_exception(BackendError(f"The worker's answer could not be read: {error!r}. This is a bug."))

    def _take(self, correlation_id: bytes) -> Answer | None:
        """The future of a reply that is expected no more; None if nothing waits for it."""
        answer, _, _ = self._expected.pop(correlation_id, (None, 0.0, None))
        return None if answer is None or answer.done() else answer

    def _receive_partial(self, correlation_id: bytes, value: bytes | None) -> None:
        """Partial replies may be lost: what cannot be read is dropped."""
        _, _, partial = self._expected.get(correlation_id, (None, 0.0, None))
        if partial is not None:
            with contextlib.suppress(PenstockError):  # also of the caller, of a reply to another task
                reply = decode_reply(value)
                if isinstance(reply, Reply):
                    partial(reply)
