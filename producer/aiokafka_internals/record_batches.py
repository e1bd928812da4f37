"""Record batches of a fetch: uncompressed within bounds, and short, so that aiokafka parses a bounded part at a time.

Pure functions. The format is RecordBatch (magic 2). A batch that cannot be unpacked is replaced by one of a single
record, which says why, has the batch's bytes and the batch's last offset. One of many records is replaced by several.
aiokafka (0.14) has neither bounds nor parts; `bounded_fetch` says what it would need.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

from penstock.producer.aiokafka_internals.decompression import BombError, CorruptError, decompress
from penstock.producer.aiokafka_internals.record_table import RecordTable

UNREADABLE_BATCH = "penstock-unreadable-batch"  # header of a record that stands for a batch; its value says why

_START = struct.Struct(">qi")  # base offset, and the length of what follows
_CRC = struct.Struct(">I")
_EPOCH_AND_MAGIC, _CHECKSUM, _CHECKED = slice(12, 17), slice(17, 21), slice(21, None)
_LAST_DELTA, _COUNT, _HEADER_BYTES = slice(23, 27), slice(57, 61), 61
_MAGIC, _OLD_ATTRIBUTES, _ATTRIBUTES = 16, 17, 22
_CODEC = 7  # mask of the attributes
# Records and headers of a batch that aiokafka parses in one step; a record with more is at fault.
_PART_ITEMS = 512
_MOST_HEADERS = 4096
OLD_FORMAT = "its format is that of Kafka before 0.11, which has no headers"


@dataclass(frozen=True, slots=True)
class UnpackBounds:
    """Of a batch, and of the batches that are unpacked together. Items are records and headers, each of which becomes
    an object."""

    batch_bytes: int
    batch_items: int
    total_bytes: int
    total_items: int


@dataclass(slots=True)
class Unpacked:
    """The batches of one partition, up to the first for which there was no room."""

    data: bytes
    num_bytes: int = 0  # unpacked; of a batch over a bound, that bound
    num_items: int = 0
    is_whole: bool = True
    faults: list[str] = field(default_factory=list)  # why batches could not be unpacked


def needs_unpacking(data: bytes | None) -> bool:
    """Whether any of the batches is compressed, or long. None: a broker may send it beside an error."""
    return data is not None and any(_codec(batch) or _is_long(batch) for batch in _batches(data))


def unpack(data: bytes, bounds: UnpackBounds) -> Unpacked:
    """Uncompress the batches of one partition, and divide long ones. Called from any thread.

    At least one batch is unpacked, so that a partition always goes on.
    """
    parts: list[bytes | memoryview] = []
    result = Unpacked(b"")
    for batch in _batches(data):
        if _codec(batch) or _is_long(batch):
            if result.num_bytes >= bounds.total_bytes or result.num_items >= bounds.total_items:
                result.is_whole = False
                break
            parts += _unpack(batch, bounds, result)
        else:
            parts.append(batch)
    result.data = b"".join(parts)
    return result


def stand_in(batch: memoryview, reason: str) -> bytes:
    """A batch of one record in place of this one."""
    base = _START.unpack_from(batch)[0]
    is_old = batch[_MAGIC] < 2  # its base offset is that of its last record
    delta = 0 if is_old else int.from_bytes(batch[_LAST_DELTA], "big")
    why = f"The batch of offsets {base} to {base + delta} cannot be read: {reason[:300]}"
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 2**31 - 1)
    builder.append(delta, 0, None, bytes(batch), [(UNREADABLE_BATCH, why.encode())])
    built = memoryview(builder.build())
    return _framed(base, built if is_old else batch, 1, built[_HEADER_BYTES:])


def _unpack(batch: memoryview, bounds: UnpackBounds, result: Unpacked) -> list[bytes | memoryview]:
    """The uncompressed form of a batch, or what stands for it. A wrong checksum is left for the reader to find."""
    if batch[_MAGIC] < 2:
        return [_at_fault(batch, OLD_FORMAT, result)]
    if calc_crc32c(bytes(batch[_CHECKED])) != int.from_bytes(batch[_CHECKSUM], "big"):
        return [batch]
    try:
        records = _uncompressed(batch, bounds.batch_bytes)
    except BombError:
        result.num_bytes += bounds.batch_bytes
        return [_at_fault(batch, f"it unpacks to more than {bounds.batch_bytes:,} bytes", result)]
    except CorruptError as error:
        return [_at_fault(batch, str(error), result)]
    result.num_bytes += len(records)
    num_items = num_records = int.from_bytes(batch[_COUNT], "big", signed=True)
    if num_records <= bounds.batch_items:
        try:
            table = RecordTable.of(records, max(0, num_records))
        except ValueError as error:
            return [_at_fault(batch, str(error), result)]
        num_items += int(np.minimum(table.num_headers, bounds.batch_items + 1).sum())
    result.num_items += num_items
    if num_items > bounds.batch_items:
        return [_at_fault(batch, f"it has more than {bounds.batch_items:,} records and headers", result)]
    if num_items <= _PART_ITEMS:
        return [_framed(_START.unpack_from(batch)[0], batch, num_records, records)]
    return _divided(batch, records, table, result)


def _uncompressed(batch: memoryview, max_bytes: int) -> bytes:
    codec, packed = _codec(batch), batch[_HEADER_BYTES:]
    if codec:
        return decompress(codec, packed, max_bytes)
    if len(packed) > max_bytes:
        raise BombError
    return bytes(packed)


def _divided(batch: memoryview, records: bytes, table: RecordTable, result: Unpacked) -> list[bytes | memoryview]:
    """The batch as batches of at most `_PART_ITEMS`, or of one record. Their offsets are those of the batch."""
    base = _START.unpack_from(batch)[0]
    last_delta = int.from_bytes(batch[_LAST_DELTA], "big", signed=True)
    parts: list[bytes | memoryview] = []
    firsts = _part_firsts(table)
    for first, end in zip(firsts, [*firsts[1:], len(table.ends)], strict=True):
        start_byte = int(table.ends[first - 1]) if first else 0
        end_byte = int(table.ends[end - 1]) if end else 0
        delta = last_delta if end == len(table.ends) else int(table.offset_deltas[end - 1])
        part = _framed(base, batch, end - first, records[start_byte:end_byte], delta)
        if end - first == 1 and table.num_headers[first] > _MOST_HEADERS:
            part = _at_fault(memoryview(part), f"a record has more than {_MOST_HEADERS:,} headers", result)
        parts.append(part)
    return parts


def _part_firsts(table: RecordTable) -> list[int]:
    """The index of the first record of each part; that of an empty batch is 0."""
    items = np.cumsum(table.num_headers + 1)
    firsts, taken = [0], 0
    while True:
        end = max(firsts[-1] + 1, int(np.searchsorted(items, taken + _PART_ITEMS, side="right")))
        if end >= len(items):
            return firsts
        firsts.append(end)
        taken = int(items[end - 1])


def _at_fault(batch: memoryview, reason: str, result: Unpacked) -> bytes:
    result.faults.append(reason)
    return stand_in(batch, reason)


def _framed(
    base_offset: int, header: memoryview, num_records: int, records: bytes | memoryview, last_delta: int | None = None
) -> bytes:
    """An uncompressed batch with this header, except for what depends on the records."""
    checked = bytearray(header[_CHECKED][: _COUNT.start - _CHECKED.start])
    checked[_ATTRIBUTES - _CHECKED.start] &= ~_CODEC
    if last_delta is not None:
        checked[_LAST_DELTA.start - _CHECKED.start : _LAST_DELTA.stop - _CHECKED.start] = last_delta.to_bytes(
            4, "big", signed=True
        )
    checked += num_records.to_bytes(4, "big", signed=True) + records
    rest = bytes(header[_EPOCH_AND_MAGIC]) + _CRC.pack(calc_crc32c(checked)) + checked
    return _START.pack(base_offset, len(rest)) + rest


def _codec(batch: memoryview) -> int:
    return batch[_OLD_ATTRIBUTES if batch[_MAGIC] < 2 else _ATTRIBUTES] & _CODEC


def _is_long(batch: memoryview) -> bool:
    """Whether there may be more in it than is parsed in one step. A header takes two bytes, a record more."""
    return batch[_MAGIC] >= 2 and int.from_bytes(batch[_COUNT], "big") > _PART_ITEMS


def _batches(data: bytes) -> Iterator[memoryview]:
    """The whole batches. A broker may cut the last one."""
    view, start = memoryview(data), 0
    while len(data) - start > _HEADER_BYTES:
        _, length = _START.unpack_from(view, start)
        end = start + _START.size + length
        if end > len(data) or end - start <= (_ATTRIBUTES if view[start + _MAGIC] < 2 else _HEADER_BYTES):
            return
        yield view[start:end]
        start = end
