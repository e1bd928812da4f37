"""Records of the topic in which brokers keep committed offsets, and the times from which they count."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from penstock.ops.chaos.verdict.commit_log import Commit, CommitLog, parse_commit

GROUP, SOURCE = "penstock.m", ("requests", 3)
ENDED, ABORTED = b"\x00\x00\x00\x01", b"\x00\x00\x00\x00"


def key(version: int, *names: str, partition: int = 3) -> bytes:
    texts = b"".join(struct.pack(f">h{len(name)}s", len(name), name.encode()) for name in names)
    return struct.pack(">h", version) + texts + struct.pack(">i", partition)


def value(offset: int, version: int = 3) -> bytes:
    return struct.pack(">hqih0sq", version, offset, 7, 0, b"", 5)  # offset, epoch of the leader, metadata, time


class Record(NamedTuple):
    timestamp: int
    key: bytes
    value: bytes | None


@dataclass(frozen=True)
class Batch:
    """Stands for a record batch of aiokafka."""

    base_offset: int
    records: Sequence[Record]
    producer_id: int = -1
    is_transactional: bool = False
    is_control_batch: bool = False

    @property
    def next_offset(self) -> int:
        return self.base_offset + len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)


def committed(at_ms: int, offset: int, group: str = GROUP) -> Record:
    return Record(at_ms, key(1, group, SOURCE[0]), value(offset))


def in_transaction(base: int, producer: int, *records: Record) -> Batch:
    return Batch(base, records, producer, is_transactional=True)


def end(base: int, producer: int, at_ms: int, how: bytes = ENDED) -> Batch:
    return Batch(base, [Record(at_ms, how, b"")], producer, is_transactional=True, is_control_batch=True)


def commits(*batches: Batch) -> list[Commit]:
    log = CommitLog(GROUP)
    return [commit for batch in batches for commit in log.add(batch)]


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_a_commit_has_a_group_a_partition_and_an_offset(version: int) -> None:
    assert parse_commit(key(1, GROUP, "requests"), value(1234, version)) == (GROUP, SOURCE, 1234)


def test_records_of_members_and_deleted_offsets_are_no_commits() -> None:
    assert parse_commit(key(1, GROUP, "requests"), None) is None
    assert parse_commit(key(2, GROUP), b"members") is None
    assert parse_commit(b"", b"") is None


def test_what_is_no_known_commit_is_refused_and_not_skipped() -> None:
    whole, known = key(1, GROUP, "requests"), value(1)
    for cut in range(2, len(whole)):
        with pytest.raises(ValueError, match="A commit"):
            parse_commit(whole[:cut], known)
    for cut in range(10):
        with pytest.raises(ValueError, match="A commit"):
            parse_commit(whole, known[:cut])
    with pytest.raises(ValueError, match="version"):
        parse_commit(whole, value(1, version=5))
    with pytest.raises(ValueError, match="A commit"):
        parse_commit(struct.pack(">hh", 1, -1) + whole[4:], known)


def test_a_commit_counts_from_its_record_on_and_those_of_other_groups_do_not() -> None:
    batch = Batch(0, [committed(10, 5), committed(11, 7, "other"), committed(12, 9)])
    assert commits(batch) == [Commit(10, SOURCE, 5), Commit(12, SOURCE, 9)]


def test_a_commit_in_a_transaction_counts_from_its_end_on() -> None:
    batches = (
        in_transaction(0, 1, committed(10, 5)),
        in_transaction(1, 2, committed(11, 50)),
        in_transaction(2, 1, committed(12, 6)),
        end(3, 1, 20),
        end(4, 2, 30),
    )
    assert commits(*batches) == [Commit(20, SOURCE, 5), Commit(20, SOURCE, 6), Commit(30, SOURCE, 50)]


def test_a_commit_in_a_transaction_that_is_aborted_or_open_does_not_count() -> None:
    aborted = commits(in_transaction(0, 1, committed(10, 5)), end(1, 1, 20, ABORTED), end(2, 1, 21))
    assert aborted == commits(in_transaction(0, 1, committed(10, 5))) == []


def test_a_log_with_a_hole_is_refused() -> None:
    with pytest.raises(ValueError, match="some were removed"):
        commits(Batch(0, [committed(10, 5)]), Batch(2, [committed(12, 9)]))
