"""`request_done` and `request_refused` lines as columns: most lines of a worker that are no batches."""

from penstock.ops.logs.lines.line_columns import LineShape

_STAGES_MS = ("tokenize_ms", "cache_ms", "schedule_ms", "compute_ms")
_PROCESS = ("service.instance.id", "pid", "worker", "suppressed")
REQUESTS = (
    LineShape(
        "request_done", ("sample", "class"), (), ("kafka_ms", "total_ms", *_STAGES_MS), optional=frozenset(_STAGES_MS)
    ),
    LineShape("request_refused", ("code", *_PROCESS[:1]), ("records", *_PROCESS[1:]), (), optional=frozenset(_PROCESS)),
)
