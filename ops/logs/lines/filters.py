"""Filters of the command line: `model=intents code=too_long p>50ms since=10m level=warning worker=2 event=batch_*`."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import ge, gt, le, lt
from typing import Any

from penstock.ops.logs.errors import BadFilter
from penstock.ops.logs.libraries import polars
from penstock.ops.logs.lines.columns import BATCH, DONE, OWN
from penstock.ops.logs.lines.event import LEVELS, Event, parse_time
from penstock.ops.logs.lines.known_fields import known_fields, near_names

_TERM = re.compile(r"([\w-]+)\s*(!=|>=|<=|=|>|<)\s*(.+)", re.DOTALL)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|min|h|d)")
_UNIT_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_ORDERS: Mapping[str, Callable[[Any, Any], Any]] = {">": gt, ">=": ge, "<": lt, "<=": le}
_TIMES = ("since", "until")
_NO_FIELDS = {"p", "model"}  # taken from other fields, and from other events
_SERVICE = ("name", "version", "instance.id")
_OF_EVERY_LINE = ("timestamp", "level", "pid", "worker", "model", *[f"service.{key}" for key in _SERVICE])
# What `p` is, by event: a field, and its unit in seconds.
_P = {DONE: ("total_ms", 1e-3), BATCH: ("device_s", 1.0)}


@dataclass(frozen=True, slots=True)
class Term:
    """One filter on a field."""

    key: str
    order: str  # =, !=, >, >=, <, <=
    values: tuple[str, ...]  # one for an order other than = and !=
    limit: float = 0.0  # for the others: a number, in the unit of the field's name

    def holds(self, value: object) -> bool:
        """Whether a field's value fits; None: the line has no such field."""
        if self.order in _ORDERS:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number and bool(_ORDERS[self.order](value, self.limit))
        text = str(value).lower() if isinstance(value, bool) else str(value)  # `true`, as in the line
        is_equal = value is not None and _pattern(self.values).fullmatch(text) is not None
        return is_equal == (self.order == "=")

    def expression(self, column: Any) -> Any:
        """The same for a column of a polars frame."""
        if self.order in _ORDERS:
            return _ORDERS[self.order](column.cast(polars().Float64, strict=False), self.limit).fill_null(False)
        pattern = f"^(?:{_pattern(self.values).pattern})$"
        is_equal = column.cast(polars().String).str.contains(f"(?s){pattern}").fill_null(False)
        return is_equal if self.order == "=" else ~is_equal


@dataclass(frozen=True, slots=True)
class Filters:
    """All terms hold of each line that is kept. Without terms every line is."""

    terms: tuple[Term, ...] = ()
    since_s: float | None = None  # Unix time
    until_s: float | None = None
    level: int = 0  # index in LEVELS; this and worse

    def accepts(self, event: Event, model: str | None) -> bool:
        """Whether an event is kept. `model`: that of its worker, if known."""
        if self.since_s is not None and (event.time_s is None or event.time_s < self.since_s):
            return False
        if self.until_s is not None and (event.time_s is None or event.time_s >= self.until_s):
            return False
        if LEVELS.index(event.level) < self.level:
            return False
        return all(term.holds(_value(event, term.key, model)) for term in self.terms)

    def passed(self, event: Event, model: str | None) -> Event | None:
        """Keep of an event what its figures need: all or nothing, but of a worker_load the rejections by code.

        They pass as lines of request_refused would, because those are limited and the counts of a load are not.
        """
        is_kept = self.accepts(event, model)
        rejected = event.fields.get("rejected")
        is_by_code = any(term.key == "code" for term in self.terms)
        if event.name != "worker_load" or not isinstance(rejected, Mapping) or (is_kept and not is_by_code):
            return event if is_kept else None
        common = {key: event.fields[key] for key in _OF_EVERY_LINE if key in event.fields}
        kept = {code: count for code, count in rejected.items() if self._passes(code, event, common, model)}
        if is_kept:
            return event._replace(fields={**event.fields, "rejected": kept, "overloaded": kept.get("overloaded", 0)})
        return event._replace(fields={**common, "event": event.name, "rejected": kept}) if kept else None

    def _passes(self, code: str, load: Event, common: Mapping[str, Any], model: str | None) -> bool:
        """Whether lines of request_refused with this code pass, as far as a load has their fields."""
        fields = {**common, "event": "request_refused", "code": code}
        is_known = all(term.key in fields or term.key == "model" for term in self.terms)
        return is_known and self.accepts(load._replace(fields=fields), model)

    def rows(self, rows: Any, models: Mapping[object, str]) -> Any:
        """The rows that are kept, of `read_rows` with `fields`. `models`: of the workers of their source, by number."""
        pl = polars()
        if self.level > LEVELS.index("info"):
            rows = rows.filter(pl.col("level").is_in(LEVELS[self.level :]))
        if self.since_s is not None:
            rows = rows.filter(pl.col("time_s") >= self.since_s)
        if self.until_s is not None:
            rows = rows.filter(pl.col("time_s") < self.until_s)
        named = {-1 if worker is None else worker: model for worker, model in models.items()}
        of_worker = pl.col("worker").fill_null(-1).replace_strict(named, default=None, return_dtype=pl.String)
        taken = {
            **dict.fromkeys(OWN, pl.lit(None, pl.String)),
            "p": pl.coalesce(pl.col("total_ms") * _P[DONE][1], "device_s"),
            "model": pl.coalesce("model", of_worker) if named else pl.col("model"),
        }
        for term in self.terms:
            rows = rows.filter(term.expression(taken.get(term.key, pl.col(term.key))))
        return rows

    @property
    def fields(self) -> set[str]:
        """The names of the fields that are compared."""
        return {term.key for term in self.terms} - _NO_FIELDS

    @property
    def is_any(self) -> bool:
        """Whether anything is filtered."""
        return bool(self.terms or self.level) or self.since_s is not None or self.until_s is not None


@cache
def _pattern(values: tuple[str, ...]) -> re.Pattern[str]:
    """One of the values; of other characters only `*` and `?` stand for any."""
    return re.compile("|".join(re.escape(one).replace(r"\*", ".*").replace(r"\?", ".") for one in values), re.DOTALL)


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
        if key == "p":
            raise BadFilter(f"p is the time of a request or a batch; compare it: p>50ms. Given: {key}{order}{value}")
        return Term(key, order, values)
    return Term(key, order, (value,), _limit(key, value))


def _limit(key: str, value: str) -> float:
    duration = _DURATION.fullmatch(value)
    if duration is not None:
        unit_s = 1.0 if key == "p" or key.endswith("_s") or key == "seconds" else 1e-3 if key.endswith("_ms") else None
        if unit_s is None:
            raise BadFilter(f"{key} is no time, so it is compared with a number. Given: {value}")
        return float(duration[1]) * _UNIT_S[duration[2]] / unit_s
    try:
        limit = float(value)
    except ValueError:
        raise BadFilter(f"{key} is compared with a number or a time such as 50ms. Given: {value!r}") from None
    if key == "p":
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


def _value(event: Event, key: str, model: str | None) -> object:
    if key == "p":
        name, unit_s = _P.get(event.name, ("", 0.0))
        time = event.number(name)
        return None if time is None else time * unit_s
    if key == "model":
        return event.fields.get("model", model)
    return event.fields.get(key)


def split_arguments(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """Files and filters, in any order. A file whose name has `=` in it is given as ./NAME."""
    files: list[str] = []
    filters: list[str] = []
    for one in arguments:
        (filters if is_filter(one) and "/" not in one.partition("=")[0] else files).append(one)
    return files, filters
