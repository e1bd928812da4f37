"""Records and batches that aiokafka cannot read are marked, and read beside their neighbours."""

import pytest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy
from aiokafka.record.util import calc_crc32c
from hypothesis import given
from hypothesis import strategies as st

from penstock.producer.aiokafka_internals.lenient_records import UNREADABLE, LenientRecords
from penstock.producer.aiokafka_internals.record_batches import UNREADABLE_BATCH, UnpackBounds, unpack

GZIP = 1
BOUNDS = UnpackBounds(batch_bytes=1 << 20, batch_items=1 << 16, total_bytes=1 << 20, total_items=1 << 16)


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
    records, found = LenientRecords(unpack(data, BOUNDS).data), []
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


def with_checksum(data: bytes) -> bytes:
    """A batch whose checksum is made right."""
    checksum: int = calc_crc32c(data[21:])
    return data[:17] + checksum.to_bytes(4, "big") + data[21:]


def spoilt(place: int, bits: int, *, compression: int = GZIP, checked: bool = True) -> bytes:
    """A batch of offsets 2 to 4 with other bits at one place."""
    data = bytearray(batch(["a", "b", "c"], 2, compression))
    data[place] ^= bits
    return with_checksum(bytes(data)) if checked else bytes(data)


UNREADABLE_BATCHES = {
    "checksum": spoilt(-9, 1, checked=False),
    "record that ends beyond its batch": spoilt(-1, 3, compression=0),
    "unknown codec": spoilt(22, 6),
    "compressed bytes": spoilt(75, 0xFF),
    "number of records": spoilt(60, 7),
}


@pytest.mark.parametrize("reason", UNREADABLE_BATCHES)
def test_one_record_stands_for_a_batch_that_cannot_be_read_and_its_neighbours_are_read(reason: str) -> None:
    bad = UNREADABLE_BATCHES[reason]
    before, stand_in, after = read(batch(["a"], 1) + bad + batch(["b"], 5))
    assert (before[0], after[0]) == (1, 5)
    offset, key, value, [(name, why)] = stand_in
    assert (offset, key, value, name) == (4, None, bad, UNREADABLE_BATCH)
    assert why is not None
    assert why.startswith(b"The batch of offsets 2 to 4 cannot be read: ")


def test_a_wrong_checksum_of_a_batch_whose_extent_is_in_doubt_is_still_an_error() -> None:
    one = LenientRecords(spoilt(26, 8, checked=False)).next_batch()  # its last offset
    assert not one.validate_crc()


@given(st.data())
def test_any_spoilt_byte_after_the_extent_is_read_as_a_stand_in(data: st.DataObject) -> None:
    whole = batch(["a", "b", "c"], 2, GZIP)
    place = data.draw(st.integers(61, len(whole) - 1))
    [stand_in] = read(spoilt(place, data.draw(st.integers(1, 255)), checked=False))
    assert stand_in[0] == 4


def test_a_batch_whose_format_is_spoilt_is_one_record_and_its_neighbours_are_read() -> None:
    spoilt_format = bytearray(batch(["a", "b"], 1))
    spoilt_format[16] = 0  # as of Kafka before 0.10
    found = read(batch(["a"]) + bytes(spoilt_format) + batch(["c"], 3))
    assert [offset for offset, *_ in found] == [0, 1, 3]
    (_, _, value, headers) = found[1]
    assert (value, headers[0][0]) == (bytes(spoilt_format), UNREADABLE_BATCH)
