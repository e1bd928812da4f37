"""Records of the topic in which brokers keep committed offsets."""

import struct

import pytest

from penstock.ops.chaos.commit_log import parse_commit


def key(version: int, *names: str, partition: int = 3) -> bytes:
    texts = b"".join(struct.pack(f">h{len(name)}s", len(name), name.encode()) for name in names)
    return struct.pack(">h", version) + texts + struct.pack(">i", partition)


@pytest.mark.parametrize(
    "value",
    [
        struct.pack(">hqh1sqq", 1, 1234, 1, b"m", 5, 6),  # offset, metadata, times
        struct.pack(">hqih0sq", 3, 1234, 7, 0, b"", 5),  # offset, epoch of the leader, metadata, time
    ],
)
def test_a_commit_has_a_group_a_partition_and_an_offset(value: bytes) -> None:
    assert parse_commit(key(1, "penstock.m", "requests"), value) == ("penstock.m", ("requests", 3), 1234)


def test_records_of_members_and_deleted_offsets_are_no_commits() -> None:
    assert parse_commit(key(1, "penstock.m", "requests"), None) is None
    assert parse_commit(key(2, "penstock.m"), b"members") is None
    assert parse_commit(b"", b"") is None
