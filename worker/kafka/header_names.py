"""Reads records whose header names are not UTF-8, which aiokafka cannot: it fails on the whole fetch.

The protocol demands UTF-8 but brokers do not check it, so one such record would end every worker that reads it. Its
batch is read again by aiokafka's Python parser, with `UNREADABLE` in place of the name. Others are read as usual.
"""

from collections.abc import Iterator
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy

UNREADABLE = "penstock-unreadable-name"  # of a header; its value is as it came


def install() -> None:
    """Replace the parser of every aiokafka consumer in this process; aiokafka (0.14) has no public way to do so."""
    fetcher.MemoryRecords = LenientRecords


class LenientRecords(_MemoryRecordsPy):  # type: ignore[misc]  # aiokafka has no type information
    """The batches that one fetch brought from one partition."""

    def next_batch(self) -> Any:
        """The next batch, which can be iterated once."""
        raw = self._next_slice
        batch = super().next_batch()
        return _Batch(batch, raw) if isinstance(batch, DefaultRecordBatch) else batch


class _Batch:
    """aiokafka's batch with another iteration."""

    def __init__(self, batch: DefaultRecordBatch, raw: memoryview) -> None:
        self._batch = batch
        self._raw = raw

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Any:
        return next(self._batch)

    def __iter__(self) -> Iterator[Any]:
        try:
            return iter(list(self._batch))
        except (UnicodeDecodeError, CorruptRecordException):  # the Python parser wraps the former in the latter
            return _LenientBatch(self._raw)


class _LenientBatch(_DefaultRecordBatchPy):  # type: ignore[misc]  # as above
    def __init__(self, raw: memoryview) -> None:
        super().__init__(raw)
        self._maybe_uncompress()
        self._buffer: bytearray = _LenientBytes(self._buffer)


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
