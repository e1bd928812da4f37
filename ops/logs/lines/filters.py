"""Filters of the command line: `model=intents code=too_long p>50ms since=10m level=warning worker=2 event=batch_*`."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import ge, gt, le, lt
from typing import Any

from penstock.ops.logs.errors import BadFilter
from penstock.ops.logs.libraries import pl
from penstock.ops.logs.lines.columns import BATCH, DONE, OWN
from penstock.ops.logs.lines.event import LEVELS, parse_time
from penstock.ops.logs.lines.known_fields import known_fields, near_names

_TERM = re.compile(r"([\w-]+)\s*(!=|>=|<=|=|>|<)\s*(.+)", re.DOTALL)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|min|h|d)")
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_INTEGER = re.compile(r"(-?\d+)(?:\.0+)?")
_ORDERS: Mapping[str, Callable[[Any, Any], Any]] = {">": gt, ">=": ge, "<": lt, "<=": le}
_TIMES = ("since", "until")
_TIME = "p"  # of a request or a batch, in seconds


@dataclass(frozen=True, slots=True)
class Term:
    """One filter on a field."""

    key: str
    order: str  # =, !=, >, >=, <, <=
    values: tuple[str, ...]  # one for an order other than = and !=
    limit: float = 0.0  # for the others: a number, in the unit of the field's name

    def holds(self, column: Any) -> Any:
        """Whether a column's values fit, as an expression. Null: the line has no such field."""
        if self.order in _ORDERS:
            return _ORDERS[self.order](column.cast(pl.Float64, strict=False), self.limit).fill_null(False)
        pattern = f"(?s)^(?:{'|'.join(map(_pattern, self.values))})$"
        is_equal = column.cast(pl.String).str.contains(pattern).fill_null(False)
        return is_equal if self.order == "=" else ~is_equal


@dataclass(frozen=True, slots=True)
class Filters:
    """All terms hold of each line that is kept. Without terms every line is."""

    terms: tuple[Term, ...] = ()
    since_s: float | None = None  # Unix time
    until_s: float | None = None
    level: int = 0  # index in LEVELS; this and worse

    def rows(self, rows: Any) -> Any:
        """The rows that are kept, of a frame of `read_rows` with `fields`."""
        if self.level:
            levels = {level: place for place, level in enumerate(LEVELS)}
            level = pl.col("level").replace_strict(levels, default=LEVELS.index("info"), return_dtype=pl.Int64)
            rows = rows.filter(level >= self.level)
        if self.since_s is not None:
            rows = rows.filter(pl.col("time_s") >= self.since_s)
        if self.until_s is not None:
            rows = rows.filter(pl.col("time_s") < self.until_s)
        for term in self.terms:
            rows = rows.filter(term.holds(_column(term.key)))
        return rows

    @property
    def fields(self) -> set[str]:
        """The names of the fields that are compared."""
        return {term.key for term in self.terms} - {_TIME}

    @property
    def is_any(self) -> bool:
        """Whether anything is filtered."""
        return bool(self.terms or self.level) or self.since_s is not None or self.until_s is not None


def _pattern(value: str) -> str:
    """A value. An integer is the same number with a point; of other characters only `*` and `?` stand for any."""
    if match := _INTEGER.fullmatch(value):
        return rf"{match[1]}(?:\.0+)?"
    return re.escape(value).replace(r"\*", ".*").replace(r"\?", ".")


def _column(key: str) -> Any:
    if key == _TIME:
        request_s, batch_s = pl.col("total_ms") * 1e-3, pl.col("device_s")
        return pl.when(event=DONE).then(request_s).when(event=BATCH).then(batch_s)
    return pl.lit(None, pl.String) if key in OWN else pl.col(key)


def parse_filters(texts: Sequence[str], now_s: float) -> Filters:
    """Filters from the command line. `now_s`: Unix time, for `since=10m`. Raises BadFilter."""
    terms: list[Term] = []
    times: dict[str, float] = {}
    level = 0
    for text in texts:
        match = _TERM.fullmatch(text.strip())
        if match is None:
            raise BadFilter(f"A filter is KEY=VALUE, or KEY and >, >=, <, <= or != and a value. Given: {text!r}")
        key, order, value = match.groups()
        if key in _TIMES:
            times[key] = _moment(key, order, value, now_s)
        elif key == "level":
            level = _level(order, value)
        else:
            terms.append(_term(key, order, value))
    return Filters(tuple(terms), times.get("since"), times.get("until"), level)


def check_fields(absent: Iterable[str]) -> None:
    """Raise BadFilter for a field that no event of the logs has, and that no worker logs."""
    unknown = sorted(set(absent) - known_fields()) if absent else []
    if unknown:
        near = near_names(unknown[0])
        hint = f" Near names: {', '.join(near)}." if near else ""
        raise BadFilter(f"No event of these logs has a field {unknown[0]!r}, and no worker logs one.{hint}")


def is_filter(text: str) -> bool:
    """Whether an argument is a filter and not the name of a file."""
    return _TERM.fullmatch(text.strip()) is not None


def _term(key: str, order: str, value: str) -> Term:
    if order not in _ORDERS:
        values = tuple(value.split(","))
        if key == _TIME:
            raise BadFilter(f"p is the time of a request or a batch; compare it: p>50ms. Given: {key}{order}{value}")
        return Term(key, order, values)
    return Term(key, order, (value,), _limit(key, value))


def _limit(key: str, value: str) -> float:
    duration = _DURATION.fullmatch(value)
    if duration is not None:
        unit_s = (
            1.0 if key == _TIME or key.endswith("_s") or key == "seconds" else 1e-3 if key.endswith("_ms") else None
        )
        if unit_s is None:
            raise BadFilter(f"{key} is no time, so it is compared with a number. Given: {value}")
        return float(duration[1]) * _UNIT_S[duration[2]] / unit_s
    try:
        limit = float(value)
    except ValueError:
        raise BadFilter(f"{key} is compared with a number or a time such as 50ms. Given: {value!r}") from None
    if key == _TIME:
        raise BadFilter(f"p needs a unit: p>{value}ms or p>{value}s.")
    return limit


def _level(order: str, value: str) -> int:
    if order not in ("=", ">=") or value not in LEVELS:
        raise BadFilter(f"level is one of {', '.join(LEVELS)}, and means this and worse. Given: level{order}{value}")
    return LEVELS.index(value)


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


def split_arguments(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Files and filters, in any order. A file whose name has `=` in it is given as ./NAME."""
    files: list[str] = []
    filters: list[str] = []
    for one in arguments:
        (filters if is_filter(one) and "/" not in one.partition("=")[0] else files).append(one)
    return files, filters
