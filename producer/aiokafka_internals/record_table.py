"""Where the records of an uncompressed batch end, their offsets and their numbers of headers, without parsing them.

A batch of 16 MiB may have half a million records. Parsed one field at a time, they would take a core for two seconds.
Goes with `record_batches`.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
from aiokafka.record.util import decode_varint

_CONTINUED = 0x80  # a byte of a number after which comes another
_MOST_NUMBER_BYTES = 10
_READ_BEYOND = 16  # zeros behind the records, so that every read of a number ends
_FEW = 48  # records; read one at a time they take less time than the calls of numpy

_Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordTable:
    """One row a record, in their order."""

    ends: _Int64  # the byte after each
    offset_deltas: _Int64  # to the batch's base offset
    num_headers: _Int64

    @classmethod
    def of(cls, records: bytes, num_records: int) -> Self:
        """Called from any thread. `num_records` is bounded by the caller.

        Raises ValueError for some batches that aiokafka cannot parse either.
        """
        starts, ends = _extents(records, num_records)
        if num_records <= _FEW:
            rows = [_row(records, *extent) for extent in zip(starts, ends, strict=True)]
            columns = ends, [delta for delta, _ in rows], [count for _, count in rows]
            return cls(*[np.array(column, np.int64) for column in columns])
        return cls._of_many(records, np.array(starts, np.int64), np.array(ends, np.int64))

    @classmethod
    def _of_many(cls, records: bytes, starts: _Int64, ends: _Int64) -> Self:
        numbers = _Numbers(records)
        if np.any(numbers.bytes_at(starts) & _CONTINUED):
            raise ValueError("a record has unknown attributes")
        _, at = numbers.read(starts + 1)  # time stamp, after the attributes
        offset_deltas, at = numbers.read(at)
        for _ in range(2):  # key and value
            lengths, at = numbers.read(at)
            at = at + np.clip(lengths, 0, len(records))
        num_headers, at = numbers.read(at)
        if np.any(at > ends):
            raise ValueError("a record ends before its fields")
        return cls(ends, offset_deltas, np.maximum(num_headers, 0))


def _row(records: bytes, start: int, end: int) -> tuple[int, int]:
    """The offset delta of one record, and its number of headers."""
    if records[start : start + 1] >= b"\x80":
        raise ValueError("a record has unknown attributes")
    _, at = _number(records, start + 1)  # time stamp
    offset_delta, at = _number(records, at)
    for _ in range(2):
        length, at = _number(records, at)
        at += max(0, length)
    num_headers, at = _number(records, at)
    if at > end:
        raise ValueError("a record ends before its fields")
    return offset_delta, max(0, num_headers)


def _number(records: bytes, at: int) -> tuple[int, int]:
    """The number at a place, and the place after it. aiokafka's function reads beyond the buffer's end."""
    if not 0 <= at < len(records):
        raise ValueError("a record ends after its batch")
    number, after = decode_varint(records, at)  # bytes end with a zero, and so does any number
    return number, after


def _extents(records: bytes, num_records: int) -> tuple[list[int], list[int]]:
    """The byte after the length of each record, and the byte after the record."""
    starts: list[int] = []
    ends: list[int] = []
    size, end = len(records), 0
    for _ in range(num_records):
        if not 0 <= end < size:
            raise ValueError("a record ends after its batch")
        length, start = records[end], end + 1
        if length & _CONTINUED:
            length, start = _number(records, end)
        else:
            length = (length >> 1) ^ -(length & 1)
        end = start + length
        starts.append(start)
        ends.append(end)
    if end != size:
        raise ValueError(f"its records end at byte {end:,} of {size:,}")
    return starts, ends


class _Numbers:
    """Reads the numbers at many places at once."""

    def __init__(self, records: bytes) -> None:
        self._bytes = np.frombuffer(records + bytes(_READ_BEYOND), np.uint8)
        self._last = len(records)

    def bytes_at(self, at: _Int64) -> npt.NDArray[np.uint8]:
        """The byte at each place; 0 behind the records."""
        found: npt.NDArray[np.uint8] = self._bytes[np.minimum(at, self._last)]
        return found

    def read(self, at: _Int64) -> tuple[_Int64, _Int64]:
        """The number at each place, and the place after it. Raises ValueError for a number without an end."""
        raw = self.bytes_at(at)
        values = (raw & 0x7F).astype(np.uint64)
        after = at + 1
        going = np.flatnonzero(raw & _CONTINUED)
        for place in range(1, _MOST_NUMBER_BYTES):
            if not len(going):
                break
            raw = self.bytes_at(after[going])
            values[going] |= (raw & 0x7F).astype(np.uint64) << np.uint64(7 * place)
            after[going] += 1
            going = going[(raw & _CONTINUED) != 0]
        if len(going):
            raise ValueError("a number of a record does not end")
        zigzag = values.astype(np.int64)
        return (values >> np.uint64(1)).astype(np.int64) ^ -(zigzag & 1), after
