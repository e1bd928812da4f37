"""Every commit of a group in its order and with its time, from the topic in which brokers keep them.

A coordinator can be asked once a second at best, and one that was suspended answers with old offsets when it wakes up.
The topic has neither fault: of two brokers that think they lead its partition, only one can write into it.
"""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.errors import for_code
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.memory_records import MemoryRecords

from penstock.ops.bench.load.records import Partition

_TOPIC = "__consumer_offsets"
_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_OF_OFFSETS = frozenset({0, 1})  # versions of keys; others are of members and of other kinds of groups
_LAST_VERSION = 4  # of values
_COMMITTED = b"\x00\x00\x00\x01"  # key of the record that ends a transaction; of one that was aborted it ends with 0
_FETCH_BYTES, _PATIENCE_S, _RETRY_S = 8 << 20, 60.0, 0.5


class Commit(NamedTuple):
    """An offset that a group has committed."""

    at_ms: int  # Unix time at the brokers; of a transaction the time of its end
    source: Partition
    offset: int


class CommitLog:
    """Takes the record batches of one partition of the topic in their order, as aiokafka parses them."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._next = 0
        self._opened: dict[int, list[tuple[Partition, int]]] = {}  # in transactions, by their producers

    def add(self, batch: Any) -> Iterator[Commit]:
        """The commits that count from this batch on. Raises ValueError if batches are missing before it."""
        if batch.base_offset != self._next:
            raise ValueError(f"The batch after offset {self._next} begins at {batch.base_offset}: some were removed.")
        self._next = batch.next_offset
        if batch.is_control_batch:
            (end,) = batch
            committed = self._opened.pop(batch.producer_id, [])
            if end.key == _COMMITTED:
                yield from [Commit(end.timestamp, source, offset) for source, offset in committed]
            return
        for record in batch:
            found = parse_commit(record.key or b"", record.value)
            if found is None or found[0] != self._group:
                continue
            if batch.is_transactional:
                self._opened.setdefault(batch.producer_id, []).append(found[1:])
            else:
                yield Commit(record.timestamp, *found[1:])


async def read_commits(servers: str, group: str) -> list[Commit]:
    """All commits of a group. For when nothing is committed any more. Raises if the topic cannot be read whole."""
    client = AIOKafkaClient(bootstrap_servers=servers)
    await client.bootstrap()
    try:
        await client.add_topic(_TOPIC)
        commits: list[Commit] = []
        for partition in sorted(client.cluster.partitions_for_topic(_TOPIC) or ()):
            log = CommitLog(group)
            async for batch in _batches(client, partition):
                commits += log.add(batch)
        return commits
    finally:
        await client.close()


async def _batches(client: AIOKafkaClient, partition: int) -> AsyncIterator[Any]:
    offset, end = 0, 1
    while offset < end:
        data, end = await _fetch(client, partition, offset)
        records = MemoryRecords(data)
        while records.has_next():
            batch = records.next_batch()
            offset = batch.next_offset
            yield batch


async def _fetch(client: AIOKafkaClient, partition: int, offset: int) -> tuple[bytes, int]:
    """Batches from an offset on, and the end of the partition."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        leader = client.cluster.leader_for_partition(TopicPartition(_TOPIC, partition))
        request = FetchRequest(0, 0, _FETCH_BYTES, 0, [(_TOPIC, [(partition, offset, _FETCH_BYTES)])])
        response = await client.send(leader, request)
        ((_, ((_, code, end, *_, data),)),) = response.topics
        if not code:
            return data or b"", end
        if time.monotonic() > until:
            raise for_code(code)(f"{_TOPIC}-{partition} could not be read for {_PATIENCE_S:.0f} s.")
        await asyncio.sleep(_RETRY_S)
        await client.force_metadata_update()


def parse_commit(key: bytes, value: bytes | None) -> tuple[str, Partition, int] | None:
    """The group, the partition and the offset of a record; None if it is not a commit.

    The key has a version, and then group, topic and partition. The value has a version, and then the offset. All known
    versions of both begin so. Raises ValueError for others.
    """
    if value is None or len(key) < _SHORT.size or _SHORT.unpack_from(key)[0] not in _OF_OFFSETS:
        return None
    try:
        group, at = _text(key, _SHORT.size)
        topic, at = _text(key, at)
        (partition,) = _INT.unpack_from(key, at)
        (version,) = _SHORT.unpack_from(value)
        (offset,) = _LONG.unpack_from(value, _SHORT.size)
    except struct.error as error:
        raise ValueError(f"A commit is cut off: {error}.") from error
    if not 0 <= version <= _LAST_VERSION or at + _INT.size != len(key):
        raise ValueError(f"A commit has a version that is not known: {version}.")
    return group, (topic, partition), offset


def _text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _SHORT.unpack_from(data, at)
    start = at + _SHORT.size
    if not 0 <= length <= len(data) - start:
        raise ValueError(f"A commit is cut off: a text of {length} bytes at {at} of {len(data)}.")
    return data[start : start + length].decode(), start + length
