"""Records of the topic in which brokers keep committed offsets, and the times from which they count."""

import struct

import pytest

from penstock.ops.bench.load.records import Record
from penstock.ops.chaos.verdict import commits
from penstock.ops.chaos.verdict.commits import Commit, parse_commit, read_commits

GROUP, SOURCE = "penstock.m", ("requests", 3)


def key(version: int, *names: str, partition: int = 3) -> bytes:
    texts = b"".join(struct.pack(f">h{len(name)}s", len(name), name.encode()) for name in names)
    return struct.pack(">h", version) + texts + struct.pack(">i", partition)


def value(offset: int, version: int = 3) -> bytes:
    return struct.pack(">hqih0sq", version, offset, 7, 0, b"", 5)  # offset, epoch of the leader, metadata, time


def committed(at: int, at_ms: int, offset: int, group: str = GROUP) -> Record:
    return Record("__consumer_offsets", 7, at, at_ms, key(1, group, SOURCE[0]), value(offset), ())


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


def test_a_commit_counts_from_its_record_on_and_those_of_other_groups_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [committed(0, 10, 5), committed(1, 11, 7, "other"), committed(2, 12, 9)]
    monkeypatch.setattr(commits, "read_topics", lambda servers, topics, isolation: iter(records))
    assert read_commits("unused", GROUP, "read_uncommitted") == [Commit(10, SOURCE, 5), Commit(12, SOURCE, 9)]


def test_a_hole_is_refused_but_where_transactions_have_their_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [committed(0, 10, 5), committed(2, 12, 9)]
    monkeypatch.setattr(commits, "read_topics", lambda servers, topics, isolation: iter(records))
    with pytest.raises(ValueError, match="some were removed"):
        read_commits("unused", GROUP, "read_uncommitted")
    assert len(read_commits("unused", GROUP, "read_committed")) == 2
