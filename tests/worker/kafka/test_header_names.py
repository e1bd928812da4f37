"""Records whose header names are not UTF-8 are read beside their neighbours, and marked."""

import pytest
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.kafka.header_names import UNREADABLE, LenientRecords

GZIP = 1


class RawName(str):
    """A header name that goes out as these bytes."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return super().encode("latin-1")


def batch(names: list[str], base_offset: int = 0, compression: int = 0) -> bytes:
    """One record a name, of one header of that name, in one batch."""
    builder = _DefaultRecordBatchBuilderPy(2, compression, 0, -1, -1, -1, 1 << 20)
    for index, name in enumerate(names):
        builder.append(index, 0, b"key %d" % index, b"value %d" % index, [("first", b"1"), (RawName(name), None)])
    return base_offset.to_bytes(8, "big") + bytes(builder.build())[8:]


def read(data: bytes) -> list[tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]]]]:
    records, found = LenientRecords(data), []
    while records.has_next():
        one = records.next_batch()
        assert one.validate_crc()
        found += [(record.offset, record.key, record.value, record.headers) for record in one]
    return found


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.sampled_from([0, GZIP]))
def test_every_record_is_read_with_its_key_value_and_readable_headers(bad: list[bool], compression: int) -> None:
    names = ["x\xff" if is_bad else "fine" for is_bad in bad]
    assert read(batch(names, 5, compression)) == [
        (5 + i, b"key %d" % i, b"value %d" % i, [("first", b"1"), (UNREADABLE if is_bad else "fine", None)])
        for i, is_bad in enumerate(bad)
    ]


def test_batches_before_and_after_are_read_too() -> None:
    data = batch(["a", "b"]) + batch(["\xff"], 2) + batch(["c"], 3)
    assert [offset for offset, *_ in read(data)] == [0, 1, 2, 3]


def test_other_corruption_still_raises() -> None:
    data = bytearray(batch(["a", "\xff"]))
    data[-1] ^= 3  # a header value's length that reaches past the record's end
    [one] = [LenientRecords(bytes(data)).next_batch()]
    assert not one.validate_crc()
    with pytest.raises(CorruptRecordException):
        list(one)
