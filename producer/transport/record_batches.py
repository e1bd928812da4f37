"""Record batches of a fetch: uncompressed within bounds, so that aiokafka has nothing to decompress. Pure functions.

The format is RecordBatch (magic 2). A batch that cannot be unpacked is replaced by one of a single record, which
says why, has the batch's bytes and the batch's last offset.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c, decode_varint

from penstock.producer.transport.decompression import BombError, CorruptError, decompress

UNREADABLE_BATCH = "penstock-unreadable-batch"  # header of a record that stands for a batch; its value says why

_START = struct.Struct(">qi")  # base offset, and the length of what follows
_CRC = struct.Struct(">I")
_EPOCH_AND_MAGIC, _CHECKSUM, _CHECKED = slice(12, 17), slice(17, 21), slice(21, None)
_LAST_DELTA, _COUNT, _HEADER_BYTES = slice(23, 27), slice(57, 61), 61
_MAGIC, _OLD_ATTRIBUTES, _ATTRIBUTES = 16, 17, 22
_CODEC = 7  # mask of the attributes
_CONTINUED = 0x80  # a byte of a number after which comes another
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


def is_packed(data: bytes | None) -> bool:
    """Whether any of the batches is compressed. None: a broker may send it beside an error."""
    return data is not None and any(_codec(batch) for batch in _batches(data))


def unpack(data: bytes, bounds: UnpackBounds) -> Unpacked:
    """Uncompress the batches of one partition. Called from any thread.

    At least one batch is unpacked, so that a partition always goes on.
    """
    parts: list[bytes | memoryview] = []
    result = Unpacked(b"")
    for batch in _batches(data):
        if _codec(batch):
            if result.num_bytes >= bounds.total_bytes or result.num_items >= bounds.total_items:
                result.is_whole = False
                break
            parts.append(_unpack(batch, bounds, result))
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


def _unpack(batch: memoryview, bounds: UnpackBounds, result: Unpacked) -> bytes | memoryview:
    """The uncompressed form of a batch, or what stands for it. A wrong checksum is left for the reader to find."""
    if batch[_MAGIC] < 2:
        return _at_fault(batch, OLD_FORMAT, result)
    if calc_crc32c(bytes(batch[_CHECKED])) != int.from_bytes(batch[_CHECKSUM], "big"):
        return batch
    try:
        records = decompress(_codec(batch), batch[_HEADER_BYTES:], bounds.batch_bytes)
    except BombError:
        result.num_bytes += bounds.batch_bytes
        return _at_fault(batch, f"it unpacks to more than {bounds.batch_bytes:,} bytes", result)
    except CorruptError as error:
        return _at_fault(batch, str(error), result)
    result.num_bytes += len(records)
    num_records = int.from_bytes(batch[_COUNT], "big", signed=True)
    try:
        num_items = _count_items(records, num_records, bounds.batch_items)
    except ValueError as error:
        return _at_fault(batch, str(error), result)
    result.num_items += num_items
    if num_items > bounds.batch_items:
        return _at_fault(batch, f"it has more than {bounds.batch_items:,} records and headers", result)
    return _framed(_START.unpack_from(batch)[0], batch, num_records, records)


def _at_fault(batch: memoryview, reason: str, result: Unpacked) -> bytes:
    result.faults.append(reason)
    return stand_in(batch, reason)


def _count_items(records: bytes, num_records: int, at_most: int) -> int:
    """The number of records and headers; if that is more than `at_most`, any such number. Parses no header.

    Raises ValueError for some batches that aiokafka cannot parse either.
    """
    num_items, end = num_records, 0
    for _ in range(num_records):
        if num_items > at_most:
            return num_items
        length, start = _varint(records, end)
        end = start + length
        _, position = _varint(records, start + 1)  # time stamp, after the attributes
        if records[start] & _CONTINUED:
            raise ValueError("a record has unknown attributes")
        _, position = _varint(records, position)  # offset
        for _ in range(2):  # key and value
            length, position = _varint(records, position)
            position += max(0, length)
        num_headers, _ = _varint(records, position)
        num_items += max(0, num_headers)
    if end != len(records):
        raise ValueError(f"its records end at byte {end:,} of {len(records):,}")
    return num_items


def _varint(records: bytes, position: int) -> tuple[int, int]:
    """The number at a position, and the position after it. aiokafka's own function reads beyond the buffer's end."""
    if not 0 <= position < len(records):
        raise ValueError("a record ends after its batch")
    number, after = decode_varint(records, position)  # bytes end with a zero, and so does any number
    return number, after


def _framed(base_offset: int, header: memoryview, num_records: int, records: bytes | memoryview) -> bytes:
    """An uncompressed batch with this header, except for what depends on the records."""
    checked = bytearray(header[_CHECKED][: _COUNT.start - _CHECKED.start])
    checked[_ATTRIBUTES - _CHECKED.start] &= ~_CODEC
    checked += num_records.to_bytes(4, "big", signed=True) + records
    rest = bytes(header[_EPOCH_AND_MAGIC]) + _CRC.pack(calc_crc32c(checked)) + checked
    return _START.pack(base_offset, len(rest)) + rest


def _codec(batch: memoryview) -> int:
    return batch[_OLD_ATTRIBUTES if batch[_MAGIC] < 2 else _ATTRIBUTES] & _CODEC


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
