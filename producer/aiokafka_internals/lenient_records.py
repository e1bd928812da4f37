"""Reads record batches on which aiokafka raises. It would raise on the whole fetch, and on each fetch after it.

- Header names that are not UTF-8: the protocol demands UTF-8 but brokers do not check it. Such a batch is read again by
  aiokafka's Python parser, with `UNREADABLE` in place of the name.
- Batches with a wrong checksum, of an old format, or with records that do not parse: one record stands for the batch.
  It has the header `UNREADABLE_BATCH`, the batch's bytes as its value and the batch's last offset.

Others are read as usual. Compressed batches come uncompressed, and long ones divided (see `bounded_fetch`), so that
what the slow parser reads in one step of the event loop is bounded.

To go, it needs header names as bytes, and an error of one batch that says where the next begins (aiokafka issue 321).
"""

from collections.abc import Iterator
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy

from penstock.producer.aiokafka_internals.record_batches import OLD_FORMAT, stand_in

UNREADABLE = "penstock-unreadable-name"  # of a header; its value is as it came
_MAGIC, _MIN_BYTES = 16, 26  # the byte that tells the format, and the least that a batch of any format takes
_NUM_RECORDS = slice(57, 61)  # in a batch
_MOST_NAMES = 8192  # that the Python parser reads of one batch: each takes it 2 µs


def install() -> None:
    """Replace the parser of every aiokafka consumer in this process; aiokafka (0.14) has no public way to do so."""
    fetcher.MemoryRecords = LenientRecords


class LenientRecords(_MemoryRecordsPy):  # type: ignore[misc]  # aiokafka has no type information
    """The batches that one fetch brought from one partition."""

    def next_batch(self) -> Any:
        """The next batch, which can be iterated once."""
        raw = self._next_slice
        if raw is None or len(raw) < _MIN_BYTES:
            return super().next_batch()  # none, or an error
        self._cache_next()
        return _Batch(raw) if raw[_MAGIC] >= 2 else DefaultRecordBatch(stand_in(raw, OLD_FORMAT))


class _Batch:
    """aiokafka's batch with another iteration, which does not fail."""

    def __init__(self, raw: memoryview) -> None:
        self._raw = raw
        self._batch = DefaultRecordBatch(raw)
        self._is_intact = bool(self._batch.validate_crc())
        self.next_offset: int = self._batch.next_offset  # which aiokafka asks of every batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def validate_crc(self) -> bool:
        """False only if the batch's extent cannot be trusted either, so that no other record is skipped with it."""
        if self._is_intact:
            return True
        num_records = int.from_bytes(self._raw[_NUM_RECORDS], "big")
        return bool(self.next_offset - self._batch.base_offset == num_records)

    @property
    def is_control_batch(self) -> bool:
        """Whether aiokafka should skip the batch."""
        return self._is_intact and bool(self._batch.is_control_batch)

    def __iter__(self) -> Iterator[Any]:
        if not self._is_intact:
            return iter(self._stand_in("its checksum is wrong"))
        try:
            return iter(list(self._batch))
        except Exception:  # also what the lenient parser reads
            return iter(self._read_again())

    def _read_again(self) -> list[Any]:
        try:
            return list(_LenientBatch(self._raw))
        except Exception as error:
            return self._stand_in(repr(error))

    def _stand_in(self, reason: str) -> list[Any]:
        return list(DefaultRecordBatch(stand_in(self._raw, reason)))


class _LenientBatch(_DefaultRecordBatchPy):  # type: ignore[misc]  # as above
    def __init__(self, raw: memoryview) -> None:
        super().__init__(raw)
        self._buffer: bytearray = _LenientBytes(self._buffer)
        self._num_names = 0

    def __next__(self) -> Any:
        record = super().__next__()
        self._num_names += len(record.headers)
        if self._num_names > _MOST_NAMES:
            raise ValueError(f"it has more than {_MOST_NAMES:,} headers, and the name of one is not UTF-8")
        return record


class _LenientBytes(bytearray):
    """The parser's buffer: the parser decodes a slice of it for each header name."""

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        return _LenientBytes(part) if isinstance(index, slice) else part

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        try:
            return super().decode(encoding, errors)
        except UnicodeDecodeError:
            return UNREADABLE
