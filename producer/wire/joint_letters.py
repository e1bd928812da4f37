"""The value of a dead letter that stands for several records of one partition: zlib over MessagePack.

A letter a record would multiply what came in: half a million empty records take 0.7 MB of gzip.
"""

import zlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import msgpack

from penstock.producer.errors import InvalidRequest
from penstock.producer.wire.headers import RECORDS, Headers

_MOST_RECORDS = 4096
_MOST_BYTES = 16 * 1024 * 1024  # uncompressed; a worker's letters have far less


class LetterRecord(NamedTuple):
    """One of the records: its original, and why it could not be processed."""

    offset: int
    timestamp: int  # Unix time in ms
    key: bytes | None
    value: bytes | None
    headers: Headers
    code: str
    message: str
    type: str  # of the exception behind the error
    attempts: int


def is_joint(headers: Headers) -> bool:
    """Whether a letter stands for several records.

    Its last header says so: those before the last may be of the original, and so of any client.
    """
    return bool(headers) and headers[-1][0] == RECORDS


def encode_letter_records(records: Iterable[LetterRecord]) -> bytes:
    """Called by a worker for each letter."""
    packed: bytes = msgpack.packb([list(record) for record in records])
    return zlib.compress(packed, 1)


def decode_letter_records(value: bytes | None) -> list[LetterRecord]:
    """The records in the value of a joint letter. Raises InvalidRequest for bytes that no worker has written."""
    try:
        stream = zlib.decompressobj()
        packed = stream.decompress(value or b"", _MOST_BYTES)
        if not stream.eof:
            raise ValueError(f"it ends too early, or has more than {_MOST_BYTES:,} bytes")
        return [_record(fields) for fields in msgpack.unpackb(packed, max_array_len=_MOST_RECORDS)]
    except (ValueError, TypeError, zlib.error, msgpack.UnpackException) as error:
        raise InvalidRequest(f"The letter's value does not hold its records. Raised: {error!r}"[:300]) from error


_TYPES: tuple[type | tuple[type, ...], ...] = (
    int,
    int,
    (bytes, type(None)),
    (bytes, type(None)),
    list,
    str,
    str,
    str,
    int,
)


def _record(fields: Any) -> LetterRecord:
    """Raises ValueError and TypeError."""
    if len(fields) != len(_TYPES) or not all(map(isinstance, fields, _TYPES)):
        raise ValueError("a record has fields of other types")
    headers = [(name, value) for name, value in fields[4]]
    if not all(isinstance(name, str) and isinstance(value, bytes | None) for name, value in headers):
        raise ValueError("a header is not of text and bytes")
    record = LetterRecord(*fields)
    return record._replace(headers=headers)
