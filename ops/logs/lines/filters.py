"""Filters of the command line: `model=intents code=too_long p>50ms since=10m level=warning worker=2 event=batch_*`."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from operator import ge, gt, le, lt
from typing import Any

from penstock.ops.logs.errors import BadFilter
from penstock.ops.logs.libraries import pl
from penstock.ops.logs.lines.blocks import BATCH, DONE, OWN
from penstock.ops.logs.lines.event import LEVELS, parse_time

_TERM = re.compile(r"([\w-]+)\s*(!=|>=|<=|=|>|<)\s*(.+)", re.DOTALL)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|min|h|d)")
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_INTEGER = re.compile(r"(-?\d+)(?:\.0+)?")
_ORDERS: Mapping[str, Callable[[Any, Any], Any]] = {">": gt, ">=": ge, "<": lt, "<=": le}
_TIME = "p"  # of a request or a batch, in seconds
_TIMES = {"since": ">=", "until": "<"}  # Unix times
_KEYS = {_TIME, *_TIMES}  # that are no fields
_MAX_NEAR = 4

# The fields that workers and clients log, to tell a filter by a misspelled name from one that nothing passes.
# Those of ops/docs/log-events.md; a test compares them.
_NAMES = """
    ago_ms answered backlog_s batch batch_sequences batch_tokens batches begins_at broker cache_ms cached cause class
    client code compute_ms consequence cores correlation_id cosine deaths detail device device_s devices dp_gain dtype
    error error_p50 error_p95 event exception exit_code failed_tokens first floor_ms graphs held_bytes hint host id
    kafka_ms kept kind labels labels_changed last latency_le_s layers left_ms left_out letter_bytes letters level logger
    max_seqlen max_tokens measured member member_pid members members_left message missed model model_type note num
    num_sequences of offset operation overloaded padded padded_tokens padding_avoided partition partitions path pause_s
    pid port position predicted_s prediction_error_p50 prediction_error_p95 prefix queued_sequences queued_tokens
    raised_at reason records refused refused_after_s rejected replaced_by restart_in_s retry_s revision routes rows runs
    sample sasl_mechanism schedule_ms score seconds security_protocol sequences service.instance.id service.name
    service.version shape signal silent_s span_id standbys suppressed tasks texts timestamp timings tokenize_ms tokens
    topic topics total_ms trace_flags trace_id traceparent trigger unanswered_s unfinished uptime_s url us_per_token
    warm_up_s worker
"""
EVENT_FIELDS = frozenset(_NAMES.split())


@dataclass(frozen=True, slots=True)
class Term:
    """One filter: on a field, on the time of a line, on its level, or on the time that a request or batch took."""

    key: str
    order: str  # =, !=, >, >=, <, <=
    values: tuple[str, ...] = ()  # for = and !=
    limit: float = 0.0  # for the others: a number, in the unit of the field's name

    def holds(self) -> Any:
        """Whether a row of `read_rows` fits, as an expression. A line without the field fits `!=` alone."""
        if self.order in _ORDERS:
            return _ORDERS[self.order](_column(self.key).cast(pl.Float64, strict=False), self.limit).fill_null(False)
        pattern = f"(?s)^(?:{'|'.join(map(_pattern, self.values))})$"
        is_equal = _column(self.key).cast(pl.String).str.contains(pattern).fill_null(False)
        return is_equal if self.order == "=" else ~is_equal


Filters = Sequence[Term]  # all of them hold of a line that is kept; without any every line is


def compared_fields(filters: Filters) -> set[str]:
    """The names of the fields that filters compare, which rows need."""
    return {term.key for term in filters} - _KEYS


def _pattern(value: str) -> str:
    """A value. An integer is the same number with a point; of other characters only `*` and `?` stand for any."""
    if match := _INTEGER.fullmatch(value):
        return rf"{match[1]}(?:\.0+)?"
    return re.escape(value).replace(r"\*", ".*").replace(r"\?", ".")


def _column(key: str) -> Any:
    if key == _TIME:
        request_s, batch_s = pl.col("total_ms") * 1e-3, pl.col("device_s")
        return pl.when(event=DONE).then(request_s).when(event=BATCH).then(batch_s)
    if key == "level":
        ranks = {level: rank for rank, level in enumerate(LEVELS)}
        return pl.col("level").replace_strict(ranks, default=LEVELS.index("info"), return_dtype=pl.Int64)
    if key in _TIMES:
        return pl.col("time_s")
    return pl.lit(None, pl.String) if key in OWN else pl.col(key)


def parse_filters(texts: Iterable[str], now_s: float) -> Filters:
    """Filters from the command line. `now_s`: Unix time, for `since=10m`. Raises BadFilter."""
    return [_term(text, now_s) for text in texts]


def check_fields(absent: Iterable[str]) -> None:
    """Raise BadFilter for a field that no event of the logs has, and that no worker logs."""
    if not absent:
        return
    from penstock.worker.resolved_settings import ResolvedSettings  # takes longer to import than a small log to read

    known = EVENT_FIELDS | ResolvedSettings.model_fields.keys()  # two events of a start have the settings
    for unknown in sorted({*absent} - known):
        near = get_close_matches(unknown.lower(), sorted(known | _KEYS), _MAX_NEAR)
        hint = f" Near names: {', '.join(near)}." if near else ""
        raise BadFilter(f"No event of these logs has a field {unknown!r}, and no worker logs one.{hint}")


def _term(text: str, now_s: float) -> Term:
    match = _TERM.fullmatch(text.strip())
    if match is None:
        raise BadFilter(f"A filter is KEY=VALUE, or KEY and >, >=, <, <= or != and a value. Given: {text!r}")
    key, order, value = match.groups()
    if key in _TIMES:
        return Term(key, _TIMES[key], limit=_moment(key, order, value, now_s))
    if key == "level":
        if order not in ("=", ">=") or value not in LEVELS:
            raise BadFilter(f"level is one of {', '.join(LEVELS)}, and means this and worse. Given: {text}")
        return Term(key, ">=", limit=LEVELS.index(value))
    if order in _ORDERS:
        return Term(key, order, limit=_limit(key, value))
    if key == _TIME:
        raise BadFilter(f"p is the time of a request or a batch; compare it: p>50ms. Given: {text}")
    return Term(key, order, tuple(value.split(",")))


def _limit(key: str, value: str) -> float:
    if duration := _DURATION.fullmatch(value):
        if key.endswith("_ms"):
            return float(duration[1]) * _UNIT_S[duration[2]] / 1e-3
        if key in (_TIME, "seconds") or key.endswith("_s"):
            return float(duration[1]) * _UNIT_S[duration[2]]
        raise BadFilter(f"{key} is no time, so it is compared with a number. Given: {value}")
    try:
        limit = float(value)
    except ValueError:
        raise BadFilter(f"{key} is compared with a number or a time such as 50ms. Given: {value!r}") from None
    if key == _TIME:
        raise BadFilter(f"p needs a unit: p>{value}ms or p>{value}s.")
    return limit


def _moment(key: str, order: str, value: str, now_s: float) -> float:
    """A time ago, a time of the last 24 hours, or an ISO 8601 time. All in UTC, as in the logs."""
    if order == "=":
        if duration := _DURATION.fullmatch(value):
            return now_s - float(duration[1]) * _UNIT_S[duration[2]]
        if (match := _CLOCK.fullmatch(value)) and int(match[1]) < 24 and int(match[2]) < 60:
            now = datetime.fromtimestamp(now_s, UTC)
            moment = now.replace(hour=int(match[1]), minute=int(match[2]), second=int(match[3] or 0), microsecond=0)
            return (moment if moment <= now else moment - timedelta(days=1)).timestamp()
        if (parsed := parse_time(value)) is not None:
            return parsed
    raise BadFilter(f"{key} is a time ago (10m), a time of day (03:00) or 2026-01-31T03:00, in UTC. Given: {value!r}")


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Files and filters, in any order. A file whose name has `=` in it is given as ./NAME."""
    filters = [one for one in arguments if _TERM.fullmatch(one.strip()) and "/" not in one.partition("=")[0]]
    return [one for one in arguments if one not in filters], filters
