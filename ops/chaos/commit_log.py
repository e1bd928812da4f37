"""Every commit of a group in its order, from the topic in which brokers keep them.

A coordinator can be asked once a second at best, and one that was suspended answers with old offsets when it wakes up.
The topic has neither fault: of two brokers that think they lead its partition, only one can write into it.
"""

import struct
from collections.abc import Iterator

from penstock.ops.chaos.asked import Partition
from penstock.ops.chaos.read_topics import read_topics

_TOPIC = "__consumer_offsets"
_VERSION, _LENGTH, _PARTITION, _OFFSET = (
    struct.Struct(">h"),
    struct.Struct(">h"),
    struct.Struct(">i"),
    struct.Struct(">q"),
)
_OF_OFFSETS = frozenset({0, 1})  # versions of keys; others are of members and of other kinds of groups


def read_commits(servers: str, group: str) -> Iterator[tuple[Partition, int]]:
    """Partitions and committed offsets. Those of transactions that were aborted are left out. Blocks."""
    for record in read_topics(servers, [_TOPIC], "read_committed"):
        commit = parse_commit(record.key or b"", record.value)
        if commit is not None and commit[0] == group:
            yield commit[1], commit[2]


def parse_commit(key: bytes, value: bytes | None) -> tuple[str, Partition, int] | None:
    """The group, the partition and the offset of a record; None if it is not a commit.

    The key has a version, and then group, topic and partition. The value has a version, and then the offset. All
    versions of both begin so.
    """
    if value is None or len(key) < _VERSION.size or _VERSION.unpack_from(key)[0] not in _OF_OFFSETS:
        return None
    group, at = _text(key, _VERSION.size)
    topic, at = _text(key, at)
    (partition,) = _PARTITION.unpack_from(key, at)
    (offset,) = _OFFSET.unpack_from(value, _VERSION.size)
    return group, (topic, partition), offset


def _text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    start = at + _LENGTH.size
    return data[start : start + length].decode(), start + length
