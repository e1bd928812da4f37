"""The trace of a record, from its `traceparent` header, as OpenTelemetry names it in logs."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.record_fields import record_fields, trace_fields
from penstock.worker.requests.record_trace import RecordTrace

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACE = {"trace_id": TRACE_ID, "span_id": SPAN_ID, "trace_flags": "01"}


def header(version: str = "00", trace_id: str = TRACE_ID, span_id: str = SPAN_ID, end: str = "01") -> bytes:
    return f"{version}-{trace_id}-{span_id}-{end}".encode()


def pending(original: Any) -> PendingRecord:
    return PendingRecord(original, (original.topic, original.partition), from_bulk_topic=False)


def test_a_record_is_named_by_its_position_and_its_trace(make_record: Callable[..., Any]) -> None:
    record = pending(make_record(offset=7, partition=2, headers=[("traceparent", header()), ("other", b"x")]))
    position = {"topic": record.original.topic, "partition": 2, "offset": 7}
    assert record_fields(record) == position | TRACE
    assert record_fields(record, num_records=2) == position  # the others have traces of their own
    assert record_fields(pending(make_record(offset=7, partition=2))) == position


def test_a_record_whose_trace_is_recorded_is_named_by_the_span_of_the_worker(make_record: Callable[..., Any]) -> None:
    record = pending(make_record(headers=[("traceparent", header())]))
    ids = TRACE | {"span_id": "1" * 16}
    record.trace = RecordTrace(None, ids, 0, 0.0, None)
    assert ids.items() <= record_fields(record).items()


@pytest.mark.parametrize("end", ["01", "01-later"])
def test_versions_that_will_come_are_read(end: str) -> None:
    assert trace_fields(header("cc", end=end)) == TRACE


@pytest.mark.parametrize(
    "invalid",
    [
        None,
        b"",
        b"\xff\x00",
        header("ff"),
        header(trace_id="0" * 32),
        header(span_id="0" * 16),
        header(trace_id=TRACE_ID.upper()),
        header(trace_id="a" * 31),
        header(end="1"),
        header() + b"\n",
    ],
)
def test_an_invalid_header_is_no_trace(invalid: bytes | None) -> None:
    assert trace_fields(invalid) == {}
