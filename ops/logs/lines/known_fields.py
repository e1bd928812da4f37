"""The fields that workers and clients log, to tell a filter by a misspelled name from one that nothing passes."""

from difflib import get_close_matches

# Those of ops/docs/log-events.md; a test compares them.
_NAMES = """
    ago_ms answered backlog_s begins_at batch batch_sequences batch_tokens batches broker cache_ms cached cause
    class client code compute_ms consequence cores correlation_id deaths detail device device_s devices dp_gain
    dtype error error_p50 error_p95 event exception exit_code failed_tokens first floor_ms graphs held_bytes hint
    host id kafka_ms kind labels last latency_le_s left_ms left_out letter_bytes letters level logger max_seqlen
    max_tokens member member_pid members members_left message missed model model_type note num of offset operation
    overloaded padded padded_tokens padding_avoided partition partitions path pause_s pid port position predicted_s
    prediction_error_p50 prediction_error_p95 prefix queued_sequences queued_tokens raised_at reason records refused
    refused_after_s rejected replaced_by restart_in_s retry_s revision rows runs sample sasl_mechanism schedule_ms
    seconds security_protocol sequences service.instance.id service.name service.version shape signal silent_s
    span_id standbys suppressed tasks texts timestamp timings tokenize_ms tokens topic topics total_ms trace_flags
    trace_id traceparent trigger unanswered_s unfinished uptime_s us_per_token warm_up_s worker
"""
EVENT_FIELDS = frozenset(_NAMES.split())
_KEYS = ("p", "since", "until")  # of filters, which are no fields
_MAX_NEAR = 4


def known_fields() -> frozenset[str]:
    """All of them, with the settings, which two events of a start have."""
    from penstock.worker.resolved_settings import ResolvedSettings  # takes longer to import than a small log to read

    return EVENT_FIELDS | ResolvedSettings.model_fields.keys()


def near_names(name: str) -> list[str]:
    """The keys of filters that a name may stand for, nearest first."""
    return get_close_matches(name.lower(), sorted({*known_fields(), *_KEYS}), _MAX_NEAR)
