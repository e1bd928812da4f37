"""Rejected requests by code. `worker_load` has complete counts; lines of `request_refused` are limited.

A load has what its process rejected since the load before. So a line is counted only where its process ended before it
logged another load.
"""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from penstock.ops.logs.libraries import polars
from penstock.ops.logs.lines.event import Event, number
from penstock.ops.logs.lines.line_columns import Found
from penstock.ops.logs.totals.samples import event_of
from penstock.ops.logs.totals.series import CAUSE_UNKNOWN, Series

MAX_CODES = 200
_PROCESS = ("service.instance.id", "pid", "worker")  # the fields of Process
_LOAD_WITHIN_S = 60.0  # a worker that rejects logs its load every 10 s; a later load has not counted a line
_ENDS = ("worker_starting", "worker_ready")  # of the process before, where process ids are used again
_COUNTED_AS = {"overloaded": "overloaded", "expired": CAUSE_UNKNOWN}  # columns of the series, beside `refused`


class Process(NamedTuple):
    """A worker's process, as its lines name it."""

    log: str
    instance: str | None
    pid: float | None
    worker: float | None

    @classmethod
    def of(cls, event: Event, log: str) -> "Process":
        """The process that logged an event. `log`: the name that the log has kept through its rotations."""
        return cls(log, event.text("service.instance.id"), event.number("pid"), event.number("worker"))


class _Line(NamedTuple):
    """Requests that one line or more tell of."""

    time_s: float
    code: str
    requests: int


class _Mark(NamedTuple):
    """The end of a period: a load has counted its lines, or its process has ended without one."""

    time_s: float
    is_load: bool


@dataclass(slots=True)
class _Period:
    """The lines of a process that are not settled: no load has counted them yet."""

    lines: list[_Line] = field(default_factory=list)
    left_out: list[_Line] = field(default_factory=list)  # lines over the limit, at the time of the line after them
    marks: list[_Mark] = field(default_factory=list)
    last_line_s: float = math.nan  # of those that are settled


@dataclass(slots=True)
class Rejected:
    """The requests that were rejected with one code, or the lines of one event."""

    count: int = 0
    lines_s: tuple[float, float] | None = None  # the first and the last line
    loads_s: tuple[float, float] | None = None  # the first and the last load that counts some
    example: Event | None = None  # the latest
    sources: set[int] = field(default_factory=set)

    def add(self, event: Event, number: int) -> None:
        """One line about a number of requests or lines."""
        self.count += number
        if self.lines_s is None or event.time_s is None or event.time_s >= self.lines_s[1]:
            self.example = event
        self.sources.add(event.source)
        self.lines_s = _widened(self.lines_s, event.time_s)

    def add_counted(self, number: int, time_s: float | None) -> None:
        """Requests that a load counts."""
        self.count += number
        self.loads_s = _widened(self.loads_s, time_s)

    @property
    def span_s(self) -> tuple[float | None, float | None]:
        """The first and the last time: of the lines, or without any of the loads."""
        return self.lines_s or self.loads_s or (None, None)


class Rejections:
    """Counts of whole logs. Sources come one after another, in blocks; `settle` is called after each block."""

    def __init__(self) -> None:
        self.by_code: dict[str, Rejected] = {}
        self._periods: dict[Process, _Period] = defaultdict(_Period)

    @property
    def total(self) -> int:
        """Requests that were rejected."""
        return sum(one.count for one in self.by_code.values())

    def add(self, event: Event, process: Process) -> None:
        """Any event."""
        if event.name == "request_refused":
            self._add_line(event, process)
        elif event.time_s is not None and event.name in _ENDS:
            self._periods[process].marks.append(_Mark(event.time_s, is_load=False))
        elif event.name == "worker_load":
            self._add_load(event, process)

    def add_lines(self, found: Found, source: int, log: str) -> None:
        """Lines of request_refused as columns: those of one process, code and second are one."""
        for *named, code, second, requests, left_out, rows in _alike(found.rows).iter_rows():
            process = Process(log, *named)
            period = self._periods[process]
            if any(int(mark.time_s) == second for mark in period.marks):  # before or after it
                for row in rows:
                    self._add_line(event_of(found, row, source), process)
                continue
            period.lines.append(_Line(float(second), code or "?", int(requests)))
            if left_out:
                period.left_out.append(_Line(float(second), code or "?", int(left_out)))
        self._add_examples(found, source)

    def settle(self, series: Series, *, is_end: bool = False) -> None:
        """Decide which lines no load counts, and count them. `is_end`: no other load follows."""
        for period in self._periods.values():
            self._settle(period, series, -math.inf if is_end else _LOAD_WITHIN_S)

    def _add_line(self, event: Event, process: Process) -> None:
        code, requests = event.text("code") or "?", max(1, int(event.number("records") or 1))
        if event.time_s is None:
            _of(self.by_code, code).add(event, requests)
            return
        _of(self.by_code, code).add(event, 0)
        period = self._periods[process]
        period.lines.append(_Line(event.time_s, code, requests))
        if left_out := left_out_before(event):
            period.left_out.append(_Line(event.time_s, code, left_out))

    def _add_load(self, event: Event, process: Process) -> None:
        rejected = rejected_of(event)
        if rejected is None:
            return
        for code, requests in rejected.items():
            _of(self.by_code, code).add_counted(requests, event.time_s)
        if event.time_s is not None:
            self._periods[process].marks.append(_Mark(event.time_s, is_load=True))

    def _add_examples(self, found: Found, source: int) -> None:
        pl = polars()
        by_time = pl.col("row").sort_by("second", maintain_order=True)
        rows = found.rows.with_row_index("row").group_by("code", maintain_order=True)
        for code, *ends in rows.agg(by_time.first().alias("first"), by_time.last().alias("last")).iter_rows():
            for row in ends:
                _of(self.by_code, code or "?").add(event_of(found, row, source), 0)

    def _settle(self, period: _Period, series: Series, waits_s: float) -> None:
        if not period.lines:
            period.marks = sorted(period.marks)[-1:]
            return
        lines, marks = _with_left_out(period), sorted(period.marks)
        mark_times = [mark.time_s for mark in marks]
        newest_s = max(period.lines)[0]
        period.lines, period.left_out, period.marks = [], [], marks[-1:]
        period.last_line_s = newest_s
        for line in lines:
            place = bisect_left(mark_times, line.time_s)
            if place == len(marks) and line.time_s > newest_s - waits_s:
                period.lines.append(line)
            elif place == len(marks) or not marks[place].is_load:
                self._count(line, series)

    def _count(self, line: _Line, series: Series) -> None:
        self.by_code[_key(self.by_code, line.code)].count += line.requests
        columns = {"refused", _COUNTED_AS.get(line.code, "refused")}
        series.add(line.time_s, dict.fromkeys(columns, float(line.requests)))


def left_out_before(event: Event) -> int:
    """The number of lines of an event that were over the limit, before this one."""
    return max(0, int(event.number("suppressed") or 0))


def rejected_of(load: Event) -> dict[str, int] | None:
    """The rejections by code that a worker_load counts. None: it does not tell."""
    rejected = load.fields.get("rejected")
    if not isinstance(rejected, Mapping):
        return None
    return {str(code): int(one) for code, count in rejected.items() if (one := number(count)) and one > 0}


def _with_left_out(period: _Period) -> list[_Line]:
    """All lines by time. Those over the limit follow the line before them at once."""
    lines = sorted(period.lines)
    times = [line.time_s for line in lines]
    for one in period.left_out:
        place = bisect_left(times, one.time_s) - 1
        before_s = times[place] if place >= 0 else period.last_line_s
        lines.append(one if math.isnan(before_s) else one._replace(time_s=before_s))
    return lines


def _alike(rows: Any) -> Any:
    """Rows of one process, code and second as one: their requests, the lines left out before them, and their places."""
    pl = polars()
    kinds = rows.with_row_index("row").group_by(*_PROCESS, "code", "second", maintain_order=True)
    requests, left_out = pl.col("records").clip(1), pl.col("suppressed").fill_null(0)
    return kinds.agg(requests.cast(pl.Float64).sum(), left_out.cast(pl.Float64).sum(), pl.col("row"))


def _widened(span_s: tuple[float, float] | None, time_s: float | None) -> tuple[float, float] | None:
    if time_s is None or span_s is None:
        return span_s if time_s is None else (time_s, time_s)
    return min(span_s[0], time_s), max(span_s[1], time_s)


def _key(table: Mapping[str, Any], key: str) -> str:
    return key if key in table or len(table) < MAX_CODES else "…"


def _of(table: dict[str, Rejected], key: str) -> Rejected:
    return table.setdefault(_key(table, key), Rejected())
