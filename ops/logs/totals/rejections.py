"""Rejected requests by code. `worker_load` has complete counts; lines of `request_refused` are limited.

A load has what its process rejected since the load before. So a line is counted only where its process ended before it
logged another load.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.ops.logs.libraries import pl
from penstock.ops.logs.lines.blocks import REFUSED, Part
from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.totals.series import CAUSE_UNKNOWN

_LOAD_WITHIN_S = 60.0  # a worker that rejects logs its load every 10 s; a later load has not counted a line
_ENDS = ("worker_starting", "worker_ready")  # of the process before, where process ids are used again
_COUNTED_AS = {"overloaded": "overloaded", "expired": CAUSE_UNKNOWN}  # columns of the series, beside `refused`
_PROCESS = ("service.instance.id", "pid", "worker")
_MAX_NAMES = 200

Span = tuple[float, float] | None  # the first and the last time


@dataclass(slots=True)
class Tally:
    """How many requests were rejected with one code, or how many lines one event has, when, and the latest line."""

    name: str
    count: int = 0
    lines_s: Span = None
    loads_s: Span = None  # of the loads that count some
    example: Event | None = None  # the latest
    sources: set[int] = field(default_factory=set)

    def add(self, event: Event, number: int = 0) -> None:
        """One line about a number of requests or lines."""
        self.count += number
        if self.lines_s is None or event.time_s is None or event.time_s >= self.lines_s[1]:
            self.example = event
        self.sources.add(event.source)
        self.lines_s = widened(self.lines_s, event.time_s)

    @property
    def span_s(self) -> Span:
        """The first and the last time: of the lines, or without any of the loads."""
        return self.lines_s or self.loads_s


def tally_of(table: dict[str, Tally], name: str) -> Tally:
    """The tally of a name. Any client may have written it, so later names share one where there are very many."""
    name = name if name in table or len(table) < _MAX_NAMES else "…"
    return table.setdefault(name, Tally(name))


def by_count(table: Mapping[str, Tally]) -> list[Tally]:
    """The greatest first."""
    return sorted(table.values(), key=lambda one: -one.count)


def widened(span_s: Span, time_s: float | None) -> Span:
    """A span of time, and a time that it is to hold, if that is known."""
    if time_s is None or span_s is None:
        return span_s if time_s is None else (time_s, time_s)
    return min(span_s[0], time_s), max(span_s[1], time_s)


def process_of(log: str) -> Any:
    """Names the process that wrote a row, as an expression. `log`: the name of its log."""
    named = [pl.col(key).cast(pl.String).fill_null("") for key in _PROCESS]
    return pl.concat_str(pl.lit(log), *named, separator="\0")


class Rejections:
    """Counts of whole logs. Sources come one after another, in parts."""

    def __init__(self) -> None:
        self.by_code: dict[str, Tally] = {}
        # Lines that no load has counted yet, in which `is_load` is null; and of each process its newest line, counted,
        # with 0 requests, and its newest end: a load that has counted the lines before it, or an end without one.
        columns = {"process": pl.String, "time_s": pl.Float64, "code": pl.String, "requests": pl.Int64}
        self._known = pl.DataFrame(schema={**columns, "is_load": pl.Boolean})

    @property
    def total(self) -> int:
        """Requests that were rejected."""
        return sum(one.count for one in self.by_code.values())

    def add_counted(self, rejected: Mapping[str, int], time_s: float | None) -> None:
        """Add the counts of a load event, by code."""
        for code, requests in rejected.items():
            tally = tally_of(self.by_code, code)
            tally.count += requests
            tally.loads_s = widened(tally.loads_s, time_s)

    def add(self, part: Part, log: str) -> Any:
        """The lines. Returns what no load counts, for a Series. `log`: the name that it kept through its rotations."""
        is_load = pl.col("counted").is_not_null()
        is_line = (pl.col("event") == REFUSED) & ~is_load
        rows = part.rows.filter(is_line | is_load | pl.col("event").is_in(_ENDS)).select(
            pl.col("place", "time_s", "suppressed"),
            pl.col("code").fill_null("?"),
            requests=pl.col("records").fill_null(1).clip(1),
            is_load=pl.when(~is_line).then(is_load),
            process=process_of(log),
        )
        lines = rows.filter(pl.col("is_load").is_null())
        self._note_examples(part, lines)
        self._count(lines.filter(pl.col("time_s").is_null()))
        lines, columns = lines.drop_nulls("time_s"), self._known.columns
        known = pl.concat([self._known, rows.drop_nulls("time_s").select(columns)])
        self._known = pl.concat([known, self._left_out(lines).select(columns)])
        return self.settle()

    def settle(self, *, is_end: bool = False) -> Any:
        """Count the lines that no load counts, and return them for a Series. `is_end`: no other load follows."""
        is_line, is_counted = pl.col("is_load").is_null(), pl.col("requests") == 0
        known = self._known.sort("time_s", ~is_line, maintain_order=True)  # a load has counted the lines of its moment
        newest_s = pl.col("time_s").filter(is_line & ~is_counted).max().over("process")
        end = pl.col("is_load").backward_fill().over("process")  # the next one
        waits = end.is_null() & (pl.col("time_s") > newest_s - _LOAD_WITHIN_S) & (not is_end)
        lines = known.with_columns(end=end, waits=waits).filter(is_line)
        newest = known.group_by("process", is_line.alias("is_line"), maintain_order=True).last()
        newest = newest.with_columns(requests=pl.lit(0, pl.Int64))
        waiting = lines.filter(pl.col("waits") & ~is_counted)
        self._known = pl.concat([waiting.select(known.columns), newest.select(known.columns)])
        settled = lines.filter(~pl.col("waits") & ~pl.col("end").fill_null(False) & ~is_counted)
        self._count(settled)
        return settled.select(
            "time_s",
            pl.col("requests").alias("refused"),
            *[(pl.col("requests") * (pl.col("code") == code)).alias(name) for code, name in _COUNTED_AS.items()],
        )

    def _count(self, lines: Any) -> None:
        for code, requests in lines.group_by("code", maintain_order=True).agg(pl.col("requests").sum()).iter_rows():
            tally_of(self.by_code, code).count += requests

    def _note_examples(self, part: Part, rows: Any) -> None:
        by_code = rows.sort("time_s", maintain_order=True).group_by("code", maintain_order=True)
        ends = pl.col("place").first().alias("first"), pl.col("place").last().alias("last")
        for code, *places in by_code.agg(ends).iter_rows():
            for place in places:
                tally_of(self.by_code, code).add(part.event(place))

    def _left_out(self, lines: Any) -> Any:
        """The lines over the limit before some lines. They follow the line before them at once."""
        before = self._known.filter(pl.col("is_load").is_null())
        every = pl.concat([before, lines], how="diagonal").sort("time_s", maintain_order=True)
        before_s = pl.col("time_s").shift().over("process")
        found = every.with_columns(time_s=pl.coalesce(before_s, "time_s"), requests=pl.col("suppressed"))
        return found.filter(pl.col("suppressed") > 0)
