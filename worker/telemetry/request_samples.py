"""Two requests of each second, for the log: the first that was answered, and the slowest online one."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import structlog

from penstock.worker.batching.batch import BatchStats
from penstock.worker.requests.record_fields import record_fields
from penstock.worker.requests.request import PendingRequest

_MAX_ID_CHARS = 64

log = structlog.get_logger("penstock.request_samples")


class _Answered(NamedTuple):
    request: PendingRequest
    stats: BatchStats | None  # None: the cache answered it
    now: float  # monotonic seconds at which its reply was made


class RequestSamples:
    """Called on the worker's event loop only. Between two calls of `log` it holds two requests at most."""

    def __init__(self) -> None:
        self._first: _Answered | None = None
        self._slowest: _Answered | None = None
        self._slowest_s = -1.0

    def offer(
        self, requests: Sequence[PendingRequest], slowest_online_s: float, stats: BatchStats | None, now: float
    ) -> None:
        """Requests that one batch answered, or the cache. `slowest_online_s`: -1 where all are bulk."""
        if self._first is None:
            self._first = _Answered(requests[0], stats, now)
        if slowest_online_s > self._slowest_s:
            slowest = min([one for one in requests if not one.bulk], key=lambda one: one.times.arrived)
            self._slowest, self._slowest_s = _Answered(slowest, stats, now), slowest_online_s

    def log(self, now: float) -> None:
        """Log what was kept, and begin anew. Called once a second."""
        first, slowest = self._first, self._slowest
        self._first, self._slowest, self._slowest_s = None, None, -1.0
        if first is not None:
            log.info("request_done", sample="first", **_fields(first, now))
        if slowest is not None and (first is None or slowest.request is not first.request):
            log.info("request_done", sample="slowest", **_fields(slowest, now))


def _fields(answered: _Answered, logged: float) -> dict[str, Any]:
    """One request's way, in milliseconds.

    `ago_ms`: from the reply to this line. `kafka_ms` is negative where the producer's clock is ahead of the worker's.
    """
    request, stats, now = answered
    original, times = request.record.original, request.times
    fields: dict[str, Any] = {
        **record_fields(request.record),
        "correlation_id": correlation_text(request.address.correlation_id),
        "class": "bulk" if request.bulk else "online",
        "sequences": len(request.results),
        "cached": request.num_cached,
        "kafka_ms": round(times.arrived_unix_ms - original.timestamp, 3),
        "tokenize_ms": times.tokenize_ms,
        "cache_ms": times.cache_ms,
        "total_ms": round((now - times.arrived) * 1e3, 3),
        "ago_ms": round((logged - now) * 1e3, 3),
        "left_ms": None if request.deadline is None else round((request.deadline - now) * 1e3, 3),
    }
    if stats is not None:
        fields["schedule_ms"] = round(max(0.0, now - times.queued - stats.device_s) * 1e3, 3)
        fields["compute_ms"] = round(stats.device_s * 1e3, 3)
        fields["batch"] = stats.number
        fields["trigger"] = stats.trigger
        fields["batch_sequences"] = stats.sums.count
        fields["batch_tokens"] = stats.sums.tokens
    return fields


def correlation_text(correlation_id: bytes | None) -> str | None:
    """A client's correlation id for the log: printable ASCII as it is, anything else in hexadecimal."""
    if correlation_id is None:
        return None
    is_text = correlation_id.isascii() and correlation_id.decode("ascii").isprintable() and correlation_id != b""
    return (correlation_id.decode() if is_text else correlation_id.hex())[:_MAX_ID_CHARS]
