"""Header names that are not UTF-8: aiokafka cannot read such a record, nor any other of its fetch.

The protocol says UTF-8, no broker checks it, and one such record would end every worker that reads it. Here the batch
it is in is read once more by aiokafka's own Python parser, with `UNREADABLE` in the place of the name; batches without
such a name, nearly all, are read as ever.
"""

from collections.abc import Iterator
from typing import Any

from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, _DefaultRecordBatchPy
from aiokafka.record.memory_records import _MemoryRecordsPy

UNREADABLE = "penstock-unreadable-name"  # of a header; its value is as it came


def install() -> None:
    """Have every aiokafka consumer of this process read this way; aiokafka (0.14) has no door for it."""
    fetcher.MemoryRecords = LenientRecords


class LenientRecords(_MemoryRecordsPy):  # type: ignore[misc]  # aiokafka has no type information
    """What one fetch brought from one partition, batch after batch."""

    def next_batch(self) -> Any:
        """The next batch; it is iterated once."""
        raw = self._next_slice
        batch = super().next_batch()
        return _Batch(batch, raw) if isinstance(batch, DefaultRecordBatch) else batch


class _Batch:
    """A batch of aiokafka's, but for its iteration."""

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
        except (UnicodeDecodeError, CorruptRecordException):  # the Python parser makes the one of the other
            return _LenientBatch(self._raw)


class _LenientBatch(_DefaultRecordBatchPy):  # type: ignore[misc]  # as above
    def __init__(self, raw: memoryview) -> None:
        super().__init__(raw)
        self._maybe_uncompress()
        self._buffer: bytearray = _LenientBytes(self._buffer)


class _LenientBytes(bytearray):
    """What the parser reads from. It slices out each header name, and decodes the slice."""

    def __getitem__(self, index: Any) -> Any:
        part = super().__getitem__(index)
        return _LenientBytes(part) if isinstance(index, slice) else part

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        try:
            return super().decode(encoding, errors)
        except UnicodeDecodeError:
            return UNREADABLE
