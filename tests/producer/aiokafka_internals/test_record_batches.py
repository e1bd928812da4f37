"""Compressed batches are unpacked within bounds; a batch over one of them is replaced by a record that says so."""

import gzip
from types import SimpleNamespace
from typing import Any

import aiokafka.codec
import numpy as np
import pytest
from aiokafka import AIOKafkaClient
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from aiokafka.record.util import calc_crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.producer.aiokafka_internals import bounded_fetch, record_table
from penstock.producer.aiokafka_internals.decompression import BombError, CorruptError, decompress
from penstock.producer.aiokafka_internals.record_batches import (
    UNREADABLE_BATCH,
    UnpackBounds,
    Unpacked,
    needs_unpacking,
    unpack,
)
from penstock.producer.aiokafka_internals.record_table import RecordTable

CODECS = {"gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
BOUNDS = UnpackBounds(batch_bytes=4096, batch_items=100, total_bytes=8192, total_items=200)
ENCODERS: dict[str, Any] = {
    "gzip": aiokafka.codec.gzip_encode,
    "snappy": aiokafka.codec.snappy_encode,
    "raw snappy": lambda data: aiokafka.codec.snappy_encode(data, xerial_compatible=False),
    "lz4": aiokafka.codec.lz4_encode,
    "zstd": aiokafka.codec.zstd_encode,
}


def batch(base_offset: int, values: list[bytes], *, codec: int = 1, headers: int = 0) -> bytes:
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 24)
    for index, value in enumerate(values):
        builder.append(index, 7, b"key", value, [("name", b"x")] * headers)
    return base_offset.to_bytes(8, "big") + bytes(builder.build())[8:]


def read(data: bytes) -> list[Any]:
    batches, found = MemoryRecords(data), []
    while batches.has_next():
        one = batches.next_batch()
        assert one.validate_crc()
        found += list(one)
    return found


def reasons(result: Unpacked) -> list[bytes]:
    return [dict(record.headers)[UNREADABLE_BATCH] for record in read(result.data)]


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_the_bound_is_exact(name: str, size: int) -> None:
    data = bytes(size)
    packed = memoryview(ENCODERS[name](data))
    codec = CODECS[name.split()[-1]]
    if packed:  # Java's snappy packs nothing to a header alone
        assert decompress(codec, packed, size) == data
    for bound in {0, size // 2, size - 1} & set(range(size)):
        with pytest.raises(BombError):
            decompress(codec, packed, bound)


@pytest.mark.parametrize("name", ENCODERS)
def test_bytes_that_are_cut_or_followed_by_others_are_corrupt(name: str) -> None:
    packed = bytes(ENCODERS[name](b"some records" * 100))
    for bad in (packed[:-5], packed + b"more", b"", b"\x00" * 40):
        with pytest.raises(CorruptError):
            decompress(CODECS[name.split()[-1]], memoryview(bad), 10_000)


def test_a_second_gzip_member_is_corrupt() -> None:
    """A megabyte of empty members would take minutes."""
    with pytest.raises(CorruptError):
        decompress(1, memoryview(gzip.compress(b"a") + gzip.compress(b"b")), 100)


@pytest.mark.parametrize("codec", CODECS.values())
def test_unpacked_batches_have_the_same_records_and_no_codec(codec: int) -> None:
    data = batch(5, [b"a", b"b"], codec=codec, headers=2) + batch(7, [b"c"], codec=0) + batch(9, [b"d"], codec=codec)
    result = unpack(data, BOUNDS)
    assert needs_unpacking(data)
    assert not needs_unpacking(result.data)
    assert (result.is_whole, result.faults) == (True, [])
    both = [[(r.offset, r.timestamp, r.key, r.value, r.headers) for r in read(one)] for one in (data, result.data)]
    assert both[0] == both[1]
    assert [offset for offset, *_ in both[0]] == [5, 6, 7, 9]


@pytest.mark.parametrize(
    ("values", "headers", "why"),
    [
        ([bytes(5000)], 0, b"it unpacks to more than 4,096 bytes"),
        ([b""] * 101, 0, b"it has more than 100 records and headers"),
        ([b""] * 10, 10, b"it has more than 100 records and headers"),
    ],
)
def test_one_record_stands_for_a_batch_over_a_bound_and_its_neighbours_are_read(
    values: list[bytes], headers: int, why: bytes
) -> None:
    bomb = batch(1, values, headers=headers)
    result = unpack(batch(0, [b"before"]) + bomb + batch(1 + len(values), [b"after"]), BOUNDS)
    before, stand_in, after = read(result.data)
    assert (before.value, stand_in.value, after.value) == (b"before", bomb, b"after")
    assert stand_in.offset == len(values)
    assert dict(stand_in.headers) == {
        UNREADABLE_BATCH: b"The batch of offsets 1 to %d cannot be read: %s" % (len(values), why)
    }
    assert result.faults == [why.decode()]


def test_batches_beyond_the_total_are_left_out_for_the_next_fetch() -> None:
    result = unpack(b"".join(batch(index, [bytes(4000)]) for index in range(5)), BOUNDS)
    assert [record.offset for record in read(result.data)] == [0, 1, 2]
    assert not result.is_whole
    result = unpack(b"".join(batch(index, [bytes(4200)]) for index in range(5)), BOUNDS)
    assert len(reasons(result)) == 2  # each is a bomb, which costs as much


def test_the_format_before_headers_is_not_unpacked() -> None:
    builder = LegacyRecordBatchBuilder(1, 1, 1 << 16)
    builder.append(0, 0, None, b"value")
    result = unpack(bytes(builder.build()), BOUNDS)
    assert reasons(result) == [
        b"The batch of offsets 0 to 0 cannot be read: its format is that of Kafka before 0.11, which has no headers"
    ]


@given(st.binary(max_size=200), st.integers(-5, 300))
def test_any_records_are_read_or_at_fault(records: bytes, count: int) -> None:
    """Also those whose lengths point anywhere."""
    whole = batch(3, [b"a"])
    checked = whole[21:57] + count.to_bytes(4, "big", signed=True) + gzip.compress(records, mtime=0)
    rest = whole[12:17] + calc_crc32c(checked).to_bytes(4, "big") + checked
    result = unpack(whole[:8] + len(rest).to_bytes(4, "big") + rest, BOUNDS)
    assert len(result.faults) == 1 or not needs_unpacking(result.data)


async def test_an_answer_brings_at_most_so_much_however_many_partitions_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_fetch, "_FETCH_BYTES", 1_000_000)
    data = batch(0, [bytes(400_000)])
    answer = SimpleNamespace(topics=[("requests", [(number, 0, data) for number in range(9)])])

    async def send(*_: Any, **__: Any) -> Any:
        return answer

    monkeypatch.setattr(AIOKafkaClient, "send", send)
    client = bounded_fetch.BoundedClient(AIOKafkaClient(bootstrap_servers="nowhere:1"))
    response = await client.send(0, FetchRequest(0, 0, 0, 0, []))
    sizes = [len(unpacked) for _, _, unpacked in response.topics[0][1]]
    assert [size > 400_000 for size in sizes] == [True] * 3 + [False] * 6
    assert sizes[3:] == [0] * 6


def many(num_records: int, *, codec: int = 1, headers: int = 0) -> bytes:
    return batch(40, [b"value %d" % number for number in range(num_records)], codec=codec, headers=headers)


@pytest.mark.parametrize("codec", [0, 1])
@given(st.integers(513, 1500), st.integers(0, 3))
@settings(max_examples=5, deadline=None)
def test_a_long_batch_comes_as_short_ones_with_the_same_records(codec: int, count: int, headers: int) -> None:
    data = many(count, codec=codec, headers=headers)
    assert needs_unpacking(data)
    result = unpack(data, UnpackBounds(1 << 20, 1 << 16, 1 << 20, 1 << 16))
    both = [[(r.offset, r.timestamp, r.key, r.value, r.headers) for r in read(one)] for one in (data, result.data)]
    assert both[0] == both[1]
    batches, lengths, next_offset = MemoryRecords(result.data), [], 40
    while batches.has_next():
        one = batches.next_batch()
        lengths.append(len(list(one)))
        next_offset += lengths[-1]
        assert one.next_offset == next_offset
    assert max(lengths) * (1 + headers) <= 512
    assert not needs_unpacking(result.data)


def test_a_record_with_very_many_headers_is_at_fault_and_its_neighbours_are_read() -> None:
    builder = DefaultRecordBatchBuilder(2, 1, 0, -1, -1, -1, 1 << 24)
    for index, headers in enumerate([1, 5000, 1]):
        builder.append(index, 7, b"key", b"value", [("name", b"x")] * headers)
    result = unpack(bytes(builder.build()), UnpackBounds(1 << 20, 1 << 16, 1 << 20, 1 << 16))
    first, stand_in, last = read(result.data)
    assert (first.offset, stand_in.offset, last.offset) == (0, 1, 2)
    assert dict(stand_in.headers)[UNREADABLE_BATCH].endswith(b"a record has more than 4,096 headers")


def outcome(read_table: Any) -> tuple[list[list[int]], bool]:
    """The columns, and whether it raised."""
    try:
        table = read_table()
    except ValueError:
        return [], True
    return [list(column) for column in (table.ends, table.offset_deltas, table.num_headers)], False


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_records_are_found_alike_one_at_a_time_and_all_at_once(data: st.DataObject) -> None:
    records = bytearray(batch(0, data.draw(st.lists(st.binary(max_size=200), max_size=5)), codec=0, headers=2)[61:])
    count = data.draw(st.integers(0, 6))
    for place in data.draw(st.lists(st.integers(0, max(0, len(records) - 1)), max_size=3)):
        records[place : place + 1] = data.draw(st.binary(min_size=1, max_size=1))
    raw = bytes(records)

    def at_once() -> RecordTable:
        starts, ends = record_table._extents(raw, count)
        return RecordTable._of_many(raw, np.array(starts, np.int64), np.array(ends, np.int64))

    assert outcome(lambda: RecordTable.of(raw, count)) == outcome(at_once)
