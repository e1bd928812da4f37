"""Records of chunks over histories of keys: what a compacting reader has, after restarts and kills."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.producer.errors import InvalidRequest
from penstock.worker.enrichment import chunk_bounds
from penstock.worker.enrichment.chunk_bounds import BoundsLog, ChunkBounds
from penstock.worker.enrichment.chunk_records import ChunkRecords, original_key
from penstock.worker.enrichment.output import ChunkOutput, Output
from penstock.worker.requests.record import PendingRecord

KEYS = (b"a", b"a#1", b"b", b"")
# Of each version: its key, how many chunks (0: a tombstone, or no text), and what comes after it: nothing, a restart
# after all was sent, or a kill after so many of the records of the versions since the last commit.
VERSIONS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.integers(0, 9), st.sampled_from([None, None, "restart", 0, 1, 3, 7])),
    min_size=1,
    max_size=30,
)


class Log:
    """The topic of bounds, compacted as much as it may be: it has the last record of each key alone."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.num_writes = 0

    def append(self, keys: Sequence[bytes]) -> None:
        self.num_writes += len(keys)
        self.keys = [*[key for key in self.keys if key not in keys], *dict.fromkeys(keys)]


class Reader(BoundsLog):
    """Of one worker. `is_acknowledged`: until then no append ends; None: each ends at once."""

    def __init__(self, log: Log, is_acknowledged: asyncio.Event | None = None) -> None:
        self._log = log
        self._seen: set[bytes] = set()
        self._is_acknowledged = is_acknowledged

    async def read_on(self) -> Sequence[bytes]:
        new = [key for key in self._log.keys if key not in self._seen]
        self._seen.update(new)
        return new

    async def append(self, keys: Sequence[bytes]) -> None:
        self._log.append(keys)
        if self._is_acknowledged is not None:
            await self._is_acknowledged.wait()


class Owner:
    """A worker that owns the partition from an assignment on, whose number is `epoch`."""

    def __init__(
        self, reader: Reader, written: list[ChunkOutput], epoch: int = 1, *, has_replays: bool = False
    ) -> None:
        self.epoch = epoch
        self.left: list[Output] = []
        self._step = asyncio.Event()
        self._written = written
        bounds = ChunkBounds(reader, is_shared=has_replays)
        self._chunks = ChunkRecords(bounds, lambda record: record.epoch == self.epoch, self._leave)

    def _leave(self, outputs: Sequence[Output], parts: Sequence[ChunkOutput]) -> None:
        self.left += outputs
        self._written += parts
        self._step.set()

    async def send(self, outputs: Sequence[Output]) -> None:
        """Returns when all have left."""
        expected = len(self.left) + len(outputs)
        self._chunks.put(outputs)
        while len(self.left) < expected:
            await self._step.wait()
            self._step.clear()


def record_of(key: bytes | None, offset: int) -> PendingRecord:
    original: Any = SimpleNamespace(topic="in", partition=0, offset=offset, key=key, value=b"", headers=[], timestamp=1)
    return PendingRecord(original, ("in", 0), False)


def output(key: bytes, version: int, num_chunks: int, epoch: int = 1) -> Output:
    record = record_of(key, version)
    record.epoch = epoch
    values = [b"%d of %d" % (number, version) for number in range(num_chunks)]
    return Output(key, None, [], lambda *_: None, record, "out", "ok", values)


def compacted(written: Sequence[ChunkOutput]) -> dict[bytes | None, bytes]:
    found = {one.key: one.value for one in written}
    return {key: value for key, value in found.items() if value is not None}


@given(VERSIONS, st.sampled_from([1, 2, 1 << 16]))
def test_a_compacting_reader_has_the_chunks_of_the_last_version_of_each_key(
    history: list[tuple[bytes, int, Any]], num_buckets: int
) -> None:
    log, written = Log(), list[ChunkOutput]()
    last: dict[bytes, tuple[int, int]] = {}  # by key: the last version that was committed, and its chunks

    async def play() -> None:
        owner = Owner(Reader(log), written)
        waiting: list[tuple[bytes, int, int]] = []  # polled, and not committed
        for version, (key, count, end) in enumerate(history):
            waiting.append((key, version, count))
            if end is None:
                continue
            num_before = len(written)
            await owner.send([output(*one, epoch=owner.epoch) for one in waiting])
            if end == "restart":
                last.update({key: (version, count) for key, version, count in waiting})
                waiting = []
            else:
                del written[num_before + end :]
                waiting = [(key, version, count // 2) for key, version, count in waiting]  # then of larger chunks
            owner = Owner(Reader(log), written, owner.epoch + 1)
        await owner.send([output(*one, epoch=owner.epoch) for one in waiting])
        last.update({key: (version, count) for key, version, count in waiting})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_bounds, "NUM_BUCKETS", num_buckets)
        asyncio.run(play())
    assert compacted(written) == {
        b"%b#%d" % (key, number): b"%d of %d" % (number, version)
        for key, (version, count) in last.items()
        for number in range(count)
    }
    assert all(one.partition(7) == one.whole.partition(7) for one in written)


async def test_a_bound_is_acknowledged_before_the_first_chunk_that_needs_it_is_sent() -> None:
    log, written, is_acknowledged = Log(), list[ChunkOutput](), asyncio.Event()
    owner = Owner(Reader(log, is_acknowledged), written)
    sending = asyncio.create_task(owner.send([output(b"a", 0, 5), output(b"b", 1, 1)]))
    for _ in range(10):
        await asyncio.sleep(0)
    assert (log.num_writes, written) == (1, [])
    is_acknowledged.set()
    await sending
    assert [one.key for one in written] == [b"a#0", b"a#1", b"a#2", b"a#3", b"a#4", b"b#0"]
    await owner.send([output(b"a", 2, 6)])
    assert log.num_writes == 1  # the bound is a power of two
    assert [(one.key, one.value is None) for one in written[-2:]] == [(b"a#6", True), (b"a#7", True)]


async def test_others_have_turns_while_many_deletes_are_made() -> None:
    sizes: list[int] = []
    turns: list[int] = []  # in which these were sent
    num_turns = 0

    class Counting(Owner):
        def _leave(self, outputs: Sequence[Output], parts: Sequence[ChunkOutput]) -> None:
            sizes.append(len(parts))
            turns.append(num_turns)
            super()._leave(outputs, parts)

    owner = Counting(Reader(Log()), [])
    await owner.send([output(b"a", 0, 4096)])
    sending = asyncio.create_task(owner.send([output(b"a", version, 0) for version in range(1, 6)]))
    while not sending.done():
        num_turns += 1
        await asyncio.sleep(0)
    assert sizes == [4096, 8192, 8192, 4096]
    assert len(set(turns)) == len(turns)


async def test_outputs_of_a_partition_that_is_gone_are_not_sent() -> None:
    written: list[ChunkOutput] = []
    owner = Owner(Reader(Log()), written, epoch=2)
    await owner.send([output(b"a", 0, 3, epoch=1), output(b"b", 1, 2, epoch=2)])
    assert [one.key for one in written] == [b"b#0", b"b#1"]


async def test_a_new_assignment_reads_what_other_workers_have_written_meanwhile() -> None:
    log, written = Log(), list[ChunkOutput]()
    first, second = Owner(Reader(log), written), Owner(Reader(log), written)
    await first.send([output(b"a", 0, 1)])
    await second.send([output(b"a", 1, 4)])
    first.epoch = 2  # the partition comes back
    await first.send([output(b"a", 2, 0, epoch=2)])
    assert compacted(written) == {}


async def test_a_live_record_deletes_the_chunks_of_a_copy_that_another_worker_has_enriched() -> None:
    log, written = Log(), list[ChunkOutput]()
    live, copies = [Owner(Reader(log), written, has_replays=True) for _ in range(2)]
    await live.send([output(b"a", 0, 1)])
    await copies.send([output(b"a", 0, 9)])  # now of smaller chunks
    await live.send([output(b"a", 1, 1)])
    assert compacted(written) == {b"a#0": b"0 of 1"}


async def test_a_lower_bound_that_a_former_owner_writes_late_lowers_none() -> None:
    log, written = Log(), list[ChunkOutput]()
    former, owner = Owner(Reader(log), written), Owner(Reader(log), written)
    await former.send([output(b"a", 0, 1)])
    await owner.send([output(b"a", 1, 16)])
    await former.send([output(b"a", 2, 3)])
    await Owner(Reader(log), written).send([output(b"a", 3, 0)])
    assert compacted(written) == {}


async def test_records_that_no_worker_has_written_bound_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_bounds, "NUM_BUCKETS", 1)
    log = Log()
    log.append([b"a key of something else", b"", b"0", b"0 0", b"0 4097", b"0 99999999999", b"1 2", b"-1 2", b"0 2 3"])
    bounds = ChunkBounds(Reader(log))
    await bounds.read(1)
    assert await bounds.take([(b"key", 0)]) == [1]
    log.append([b"0 4096"])
    await bounds.read(2)
    assert await bounds.take([(b"key", 0)]) == [4096]


@pytest.mark.parametrize("key", [b"\x00\x00\x00\x00\x01\x02", b"\xff\xfe", b"\x00\x00\x00\x00\x00\x00\x00\x07"])
def test_a_key_that_is_no_text_has_no_chunks(key: bytes) -> None:
    with pytest.raises(InvalidRequest, match="not text"):
        original_key(record_of(key, 0))


def test_a_record_without_a_key_has_no_chunks() -> None:
    with pytest.raises(InvalidRequest, match="has no key"):
        original_key(record_of(None, 0))
