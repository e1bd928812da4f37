"""The fields by which a log event names a record: its position, and the trace that it belongs to."""

import re
from typing import Any

from penstock.producer.wire.headers import TRACEPARENT
from penstock.worker.requests.record import KafkaRecord

# W3C Trace Context: version, trace id, parent id, flags; later versions may add more. Ids of zeros are invalid.
_FORM = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def record_fields(record: KafkaRecord, num_records: int = 1) -> dict[str, Any]:
    """Fields of an event about a record. About several the event names the first, and no trace."""
    position = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
    return position | (trace_fields(dict(record.headers).get(TRACEPARENT)) if num_records == 1 else {})


def trace_fields(traceparent: bytes | None) -> dict[str, str]:
    """`trace_id`, `span_id` and `trace_flags`, as OpenTelemetry names them; empty without a valid header."""
    found = _FORM.fullmatch(traceparent or b"")
    if found is None:
        return {}
    trace_id, span_id, flags = (part.decode() for part in found.group(1, 2, 3))
    return {"trace_id": trace_id, "span_id": span_id, "trace_flags": flags}
