"""The fields by which a log event names a record: its position, and the trace that it belongs to."""

import re
from typing import Any

from penstock.producer.errors import PenstockError
from penstock.producer.wire.headers import TRACEPARENT, TraceParent
from penstock.worker.requests.record import PendingRecord

_QUOTED = re.compile(" (?:Given|Asked for|Raised): ")  # what follows quotes the request, or a library's error about it
_MAX_REASON_CHARS = 500


def record_fields(record: PendingRecord, num_records: int = 1) -> dict[str, Any]:
    """Fields of an event about a record. About several the event names the first, and no trace.

    The span is the worker's own where the trace is recorded, else the one that the record's header names.
    """
    original = record.original
    position = {"topic": original.topic, "partition": original.partition, "offset": original.offset}
    if num_records != 1:
        return position
    if record.trace is not None:
        return {**position, **record.trace.ids}
    return position | trace_fields(dict(original.headers).get(TRACEPARENT))


def trace_fields(traceparent: bytes | None) -> dict[str, str]:
    """`trace_id`, `span_id` and `trace_flags`, as OpenTelemetry names them; empty without a valid header."""
    found = TraceParent.parse(traceparent)
    return {} if found is None else found._asdict()


def unquoted_reason(error: PenstockError) -> str:
    """An error's message without what it quotes, which may be payload. The error reply and the dead letter have all."""
    return _QUOTED.split(error.message, maxsplit=1)[0][:_MAX_REASON_CHARS]
