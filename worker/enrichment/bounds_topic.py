"""The topic of the bounds of chunks, in Kafka. See `ChunkBounds`."""

import asyncio
from collections.abc import Sequence

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from penstock.producer.errors import KafkaUnreachable
from penstock.producer.transport.cluster import KafkaCluster, KafkaRefused
from penstock.producer.transport.connection import connect, disconnect, ensure_topics, topic_config
from penstock.producer.transport.outbox import Outbox, OutRecord
from penstock.worker.enrichment.chunk_bounds import BoundsLog
from penstock.worker.routes.settings import chunk_bounds_topic

_CLIENT_ID = "penstock-worker-chunks"
_POLICY = "cleanup.policy"
_NEEDS = f"It must have one partition and {_POLICY}=compact. Without it, chunks that are gone would not be deleted."
_STALL_S = 30.0  # in which a read must end, or it is begun again where it was
_RETRY_S = 1.0
_STOP_S = 2.0
_FETCH_MAX_WAIT_MS = 10  # a broker answers one request of a connection after another: the next read waits for a fetch

log = structlog.get_logger("penstock.chunk_bounds")


class BoundsTopic(BoundsLog):
    """Called on the event loop: `start` first, then the others by one task, and `stop` at last."""

    def __init__(self, cluster: KafkaCluster, output_topic: str) -> None:
        self._cluster = cluster
        self._outbox = Outbox(cluster, client_id=_CLIENT_ID)
        self._topic = chunk_bounds_topic(output_topic)
        self._consumer: AIOKafkaConsumer | None = None  # kept between reads: with replays each record has one
        self._position = 0  # all before it was read

    async def start(self) -> None:
        """Connect, and create the topic if it is missing.

        Raises KafkaRefused where it cannot be had, or has other properties than it needs.
        """
        await self._outbox.start()
        await ensure_topics(self._cluster, [self._topic], 1, {_POLICY: "compact"})
        try:
            num_partitions = await self._outbox.partitions(self._topic)
        except UnknownTopicOrPartitionError as error:
            raise KafkaRefused(f"The topic {self._topic} does not exist, and was not created. {_NEEDS}") from error
        except TopicAuthorizationFailedError as error:
            raise KafkaRefused(f"Kafka denies {self._topic} to this worker. It needs the ACL WRITE on it.") from error
        policy = await topic_config(self._cluster, self._topic, _POLICY)
        if (num_partitions, policy) != (1, "compact"):
            raise KafkaRefused(f"The topic {self._topic} has {num_partitions} partitions, and {policy=}. {_NEEDS}")

    async def read_on(self) -> Sequence[bytes]:
        keys: list[bytes] = []
        while True:
            try:
                async with asyncio.timeout(_STALL_S):
                    await self._read(keys)
                return keys
            except (KafkaError, KafkaUnreachable, OSError) as error:  # OSError includes time-outs
                log.warning("chunk_bounds_unreadable", topic=self._topic, error=repr(error), retry_s=_RETRY_S)
                await self._disconnect()
                await asyncio.sleep(_RETRY_S)

    async def _read(self, keys: list[bytes]) -> None:
        """Append the keys from the position to the present end."""
        source = TopicPartition(self._topic, 0)
        if self._consumer is None:
            self._consumer = await connect(self._cluster, self._make_consumer)
            self._consumer.assign([source])
            self._consumer.seek(source, self._position)
            self._consumer.pause(source)
        consumer = self._consumer
        end = (await consumer.end_offsets([source]))[source]
        if self._position == end:
            return
        consumer.resume(source)
        while self._position < end:
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                keys += [record.key for record in records if record.key is not None]
            self._position = await consumer.position(source)
        consumer.pause(source)

    async def append(self, keys: Sequence[bytes]) -> None:
        while (error := await self._send(keys)) is not None:
            log.warning("chunk_bounds_refused", topic=self._topic, error=repr(error), retry_s=_RETRY_S)
            await asyncio.sleep(_RETRY_S)

    async def _send(self, keys: Sequence[bytes]) -> KafkaError | None:
        """The first error, once each is acknowledged or refused."""
        num_left = len(keys)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        errors: list[KafkaError] = []

        def done(records: Sequence[OutRecord], error: KafkaError | None) -> None:
            nonlocal num_left
            num_left -= len(records)
            errors.extend([] if error is None else [error])
            if num_left == 0 and not ended.done():
                ended.set_result(None)

        self._outbox.put(self._topic, 0, [OutRecord(key, b"", [], done) for key in keys])
        await ended
        return errors[0] if errors else None

    async def stop(self) -> None:
        """Disconnect. Bounds that are not acknowledged are dropped: no chunk was sent that needs them."""
        await asyncio.gather(self._outbox.stop(0.0), self._disconnect())

    async def _disconnect(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await disconnect(consumer, _STOP_S)

    def _make_consumer(self) -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            **self._cluster.arguments,
            client_id=_CLIENT_ID,
            group_id=None,
            fetch_max_wait_ms=_FETCH_MAX_WAIT_MS,
            enable_auto_commit=False,
            auto_offset_reset="earliest",  # of a topic that was created again
        )
