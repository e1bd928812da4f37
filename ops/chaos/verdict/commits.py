"""Commits of a group: how far it has come, and each in its order and with its time.

The latter are from the topic in which brokers keep them. A coordinator can be asked once a second at best, and one that
was suspended answers with old offsets when it wakes up. The topic has neither fault: of two brokers that think they
lead its partition, only one can write into it.
"""

import asyncio
import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from penstock.ops.bench.load.records import Partition, read_topics
from penstock.producer.keywords import IsolationLevel

_TOPIC = "__consumer_offsets"
_SHORT, _INT, _LONG = struct.Struct(">h"), struct.Struct(">i"), struct.Struct(">q")
_OF_OFFSETS = frozenset({0, 1})  # versions of keys; others are of members and of other kinds of groups
_LAST_VERSION = 4  # of values
_PATIENCE_S = 10.0
# A consumer that does not subscribe is no member of its group.
_OPTIONS = {"enable.auto.commit": False, "isolation.level": "read_uncommitted", "log_level": 0}


class Commit(NamedTuple):
    """An offset that a group has committed."""

    at_ms: int  # Unix time at the brokers; in a transaction before its end, but behind all answers in it
    source: Partition
    offset: int


def read_commits(servers: str, group: str, isolation: IsolationLevel) -> list[Commit]:
    """All commits of a group that count. For when nothing is committed any more. Blocks.

    `isolation`: "read_committed" where commits are in transactions. Raises if the topic cannot be read whole.
    """
    commits: list[Commit] = []
    next_offsets: dict[int, int] = {}
    for record in read_topics(servers, [_TOPIC], isolation):
        expected = next_offsets.get(record.partition, 0)
        # The ends of transactions have offsets too, and are not read.
        if isolation == "read_uncommitted" and record.offset != expected:
            raise ValueError(f"The record after offset {expected} is at {record.offset}: some were removed.")
        next_offsets[record.partition] = record.offset + 1
        found = parse_commit(record.key or b"", record.value)
        if found is not None and found[0] == group:
            commits.append(Commit(record.timestamp, *found[1:]))
    return commits


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


class CommitWatch:
    """Asks the coordinator of the group and the leaders of the request topics."""

    def __init__(self, servers: str, group: str, sources: Sequence[str]) -> None:
        """`sources`: topics of requests."""
        self._sources = sources
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": group, **_OPTIONS})

    async def num_behind(self) -> float:
        """Requests, or rather their offsets, that are not committed.

        Infinite where the brokers do not answer, or not of all topics, or an end is below what is committed: a broker
        that has just started may not know better.
        """
        try:
            committed, ends = await asyncio.to_thread(self.committed_and_ends)
        except KafkaException:
            return math.inf
        behind = [end - committed.get(source, 0) for source, end in ends.items()]
        is_whole = {topic for topic, _ in ends} == {*self._sources} and min(behind) >= 0
        return sum(behind) if is_whole else math.inf

    async def keeps_up(self, topic: str, seconds: float) -> bool:
        """Whether all that a topic has at this moment is committed so much later. False if no broker answers."""
        try:
            ends = await asyncio.to_thread(self._ends, [topic])
            await asyncio.sleep(seconds)
            committed = await asyncio.to_thread(self._committed)
        except KafkaException:
            return False
        return all(committed.get(source, 0) >= end for source, end in ends.items())

    def committed_and_ends(self) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Offsets that the group has committed, and then the ends of the partitions of requests. Blocks."""
        return self._committed(), self._ends(self._sources)

    def _committed(self) -> dict[Partition, int]:
        found = self._consumer.committed(self._partitions(self._sources), _PATIENCE_S)
        return {(one.topic, one.partition): one.offset for one in found if one.offset >= 0}

    def _ends(self, topics: Sequence[str]) -> dict[Partition, int]:
        ends = {}
        for one in self._partitions(topics):
            _, ends[one.topic, one.partition] = self._consumer.get_watermark_offsets(one, _PATIENCE_S)
        return ends

    def _partitions(self, topics: Sequence[str]) -> list[TopicPartition]:
        known = self._consumer.list_topics(timeout=_PATIENCE_S).topics
        return [
            TopicPartition(topic, number) for topic in topics if topic in known for number in known[topic].partitions
        ]
