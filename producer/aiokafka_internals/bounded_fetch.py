"""Bounds on what a fetch unpacks to, and the unpacking beside the event loop.

aiokafka (0.14) decompresses inside `getmany`, on the event loop and without a bound: 260 KB of gzip are 256 MiB there.
Here each answer to a fetch is unpacked before aiokafka parses it. To go, it needs a bound on what a batch unpacks to,
and decompression in a thread.
"""

import asyncio
from typing import Any

import structlog
from aiokafka import AIOKafkaClient, AIOKafkaConsumer
from aiokafka.consumer.fetcher import FetchResult
from aiokafka.protocol.fetch import FetchRequest

from penstock.producer.aiokafka_internals.client import FailoverClient
from penstock.producer.aiokafka_internals.record_batches import UnpackBounds, needs_unpacking, unpack

MAX_BATCH_BYTES = 16 * 1024 * 1024
MAX_BATCH_ITEMS = 512 * 1024  # of about 100 bytes each
_FETCH_BYTES = 48 * 1024 * 1024  # unpacked and not polled; more is fetched again when there is room
_FETCH_ITEMS = MAX_BATCH_ITEMS
# Partitions that bring so little, and unpack to so little, are unpacked on the event loop: a thread costs more.
_SMALL_PACKED_BYTES = 16 * 1024
_SMALL = UnpackBounds(batch_bytes=128 * 1024, batch_items=4096, total_bytes=128 * 1024, total_items=4096)
_HELD_S = 0.01  # until the next fetch, while nothing large may be unpacked

log = structlog.get_logger("penstock.fetch")


class BoundedClient(FailoverClient):
    """A consumer's client, whose answers to fetches are unpacked."""

    def __init__(self, made: AIOKafkaClient) -> None:
        super().__init__(made)
        self.fetched: dict[Any, Any] = {}  # of the consumer's fetcher, once there is one
        self._unpacking = asyncio.Lock()  # one answer at a time: several brokers share the bounds

    async def send(self, node_id: Any, request: Any, **options: Any) -> Any:
        """As aiokafka's."""
        response = await super().send(node_id, request, **options)
        is_fetch = request.API_KEY == FetchRequest.API_KEY  # isinstance costs more: the class is abstract
        if is_fetch and any([needs_unpacking(data) for *_, data in _partitions(response)]):
            async with self._unpacking:
                if self._num_held_bytes() >= _FETCH_BYTES:
                    await asyncio.sleep(_HELD_S)
                await _Unpacking(self._num_held_bytes()).unpack(response)
        return response

    def _num_held_bytes(self) -> int:
        """Bytes of batches that no poll has taken, as they are after unpacking. Paused partitions hold up no others."""
        results = [result for result in self.fetched.values() if isinstance(result, FetchResult)]
        taken = [result for result in results if result.has_more() and not is_paused(result)]
        return sum([result._partition_records._records.size_in_bytes() for result in taken])


class BoundedConsumer(AIOKafkaConsumer):  # type: ignore[misc]  # aiokafka has no type information
    """A consumer that reads compressed batches within bounds. Gets its topics or partitions after `start`."""

    _client: Any
    _fetcher: Any

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._client = BoundedClient(self._client)

    async def start(self) -> None:
        """Connect."""
        await super().start()
        self._client.fetched = self._fetcher._records

    @property
    def client(self) -> Any:
        """Its client, a FailoverClient."""
        return self._client


def is_paused(result: FetchResult) -> bool:
    """Whether the partition of what a fetch has brought is paused."""
    assignment = result._assignment
    return bool(assignment.active and assignment.state_value(result._topic_partition).paused)


def _partitions(response: Any) -> list[tuple[Any, ...]]:
    """The partitions of a fetch's answer: the number first, its batches last."""
    return [partition for _, partitions in response.topics for partition in partitions]


class _Unpacking:
    """Unpacks one answer, partition by partition, until it has brought enough."""

    def __init__(self, num_held_bytes: int) -> None:
        self._bytes_left = _FETCH_BYTES - num_held_bytes
        self._items_left = _FETCH_ITEMS

    async def unpack(self, response: Any) -> None:
        """Replace the answer's batches. Batches that are left out are fetched again."""
        topics = []
        for topic, partitions in response.topics:
            unpacked = []
            for *head, data in partitions:
                is_done = not needs_unpacking(data)
                unpacked.append((*head, data if is_done else await self._unpack(f"{topic}-{head[0]}", data)))
            topics.append((topic, unpacked))
        response.topics = topics

    async def _unpack(self, partition: str, data: bytes) -> bytes:
        result = unpack(data, _SMALL) if len(data) <= _SMALL_PACKED_BYTES else None
        if result is None or result.faults or not result.is_whole:
            if min(self._bytes_left, self._items_left) <= 0:
                return b""  # what is small needs no room: the records of one partition hold up no others
            bounds = UnpackBounds(MAX_BATCH_BYTES, MAX_BATCH_ITEMS, self._bytes_left, self._items_left)
            result = await asyncio.to_thread(unpack, data, bounds)
        self._bytes_left -= result.num_bytes
        self._items_left -= result.num_items
        for fault in result.faults:
            log.warning("batch_unreadable", partition=partition, reason=fault)
        return result.data
