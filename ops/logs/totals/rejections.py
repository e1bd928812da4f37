"""Rejected requests by code. `worker_load` has complete counts; lines of `request_refused` are limited.

A load has what its process rejected since the load before. So a line is counted only where its process ended before it
logged another load.
"""

from typing import Any

from penstock.ops.logs.libraries import pl
from penstock.ops.logs.lines.columns import REFUSED
from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.lines.parser import Part
from penstock.ops.logs.totals.series import CAUSE_UNKNOWN
from penstock.ops.logs.totals.tally import Tally, tally_of

_LOAD_WITHIN_S = 60.0  # a worker that rejects logs its load every 10 s; a later load has not counted a line
_ENDS = ("worker_starting", "worker_ready")  # of the process before, where process ids are used again
_COUNTED_AS = {"overloaded": "overloaded", "expired": CAUSE_UNKNOWN}  # columns of the series, beside `refused`
_PROCESS = ("service.instance.id", "pid", "worker")


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

    def add(self, part: Part, log: str) -> Any:
        """Returns what no load counts, for a Series. `log`: the name that the log has kept through its rotations."""
        for event in part.events.values():
            self._add_load(event)
        is_line = pl.col("event") == REFUSED
        ends = [place for place, event in part.events.items() if event.name in _ENDS or event.rejected is not None]
        rows = part.rows.filter(is_line | pl.col("place").is_in(ends)).with_columns(
            pl.col("code").fill_null("?"),
            requests=pl.col("records").fill_null(1).clip(1),
            is_load=pl.when(~is_line).then(pl.col("event") == "worker_load"),
            process=pl.concat_str(
                pl.lit(log), *[pl.col(key).cast(pl.String).fill_null("") for key in _PROCESS], separator="\0"
            ),
        )
        lines = rows.filter(is_line)
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

    def _add_load(self, event: Event) -> None:
        for code, requests in (event.rejected or {}).items():
            tally_of(self.by_code, code).add_counted(requests, event.time_s)

    def _note_examples(self, part: Part, rows: Any) -> None:
        ends = pl.col("place").first().alias("first"), pl.col("place").last().alias("last")
        for code, *places in (
            rows.sort("time_s", maintain_order=True).group_by("code", maintain_order=True).agg(ends).iter_rows()
        ):
            for place in places:
                tally_of(self.by_code, code).add(part.event(place))

    def _left_out(self, lines: Any) -> Any:
        """The lines over the limit before some lines. They follow the line before them at once."""
        before = self._known.filter(pl.col("is_load").is_null())
        every = pl.concat([before, lines], how="diagonal").sort("time_s", maintain_order=True)
        before_s = pl.col("time_s").shift().over("process")
        found = every.with_columns(time_s=pl.coalesce(before_s, "time_s"), requests=pl.col("suppressed"))
        return found.filter(pl.col("suppressed") > 0)
