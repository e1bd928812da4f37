"""Rejected requests by code. `worker_load` has complete counts; lines of `request_refused` are limited.

A load has what its process rejected since the load before. So a line is counted only where its process ended before it
logged another load.
"""

from typing import Any

from penstock.ops.logs.libraries import pl
from penstock.ops.logs.lines.event import Event
from penstock.ops.logs.lines.parser import Part
from penstock.ops.logs.totals.series import CAUSE_UNKNOWN
from penstock.ops.logs.totals.tally import Tally, tally_of

_LOAD_WITHIN_S = 60.0  # a worker that rejects logs its load every 10 s; a later load has not counted a line
_ENDS = ("worker_starting", "worker_ready")  # of the process before, where process ids are used again
_COUNTED_AS = {"overloaded": "overloaded", "expired": CAUSE_UNKNOWN}  # columns of the series, beside `refused`
_PROCESS = ("service.instance.id", "pid", "worker")
_BY_TIME: dict[str, Any] = {"on": "time_s", "by": "process", "check_sortedness": False}  # both frames are sorted


class Rejections:
    """Counts of whole logs. Sources come one after another, in parts."""

    def __init__(self) -> None:
        self.by_code: dict[str, Tally] = {}
        # Lines that no load has counted yet; and of each process its newest one, counted, with 0 requests.
        self._lines = pl.DataFrame(
            schema={"process": pl.String, "time_s": pl.Float64, "code": pl.String, "requests": pl.Int64}
        )
        # The ends of periods: a load has counted their lines, or the process has ended without one.
        self._marks = pl.DataFrame(schema={"process": pl.String, "time_s": pl.Float64, "is_load": pl.Boolean})

    @property
    def total(self) -> int:
        """Requests that were rejected."""
        return sum(one.count for one in self.by_code.values())

    def add(self, part: Part, rows: Any, log: str) -> Any:
        """Rows of request_refused, and the events of their part. Returns what no load counts, for a Series.

        `log`: the name that the log has kept through its rotations.
        """
        for event in part.events.values():
            self._add_load(event)
        rows = rows.with_columns(
            pl.col("code").fill_null("?"), requests=pl.col("records").fill_null(1).clip(1), process=_process(log)
        )
        self._note_examples(part, rows)
        for code, requests in rows.filter(pl.col("time_s").is_null()).select("code", "requests").iter_rows():
            tally_of(self.by_code, code).count += requests
        rows = rows.drop_nulls("time_s")
        ends = [place for place, event in part.events.items() if event.name in _ENDS or event.rejected is not None]
        marks = part.rows.filter(pl.col("place").is_in(ends)).drop_nulls("time_s")
        marks = marks.with_columns(process=_process(log), is_load=pl.col("event") == "worker_load")
        self._marks = pl.concat([self._marks, marks.select(self._marks.columns)]).sort("time_s")
        self._lines = pl.concat([self._lines, rows.select(self._lines.columns)]).sort("time_s")
        self._lines = pl.concat([self._lines, self._left_out(rows.filter(pl.col("suppressed") > 0))]).sort("time_s")
        return self.settle()

    def settle(self, *, is_end: bool = False) -> Any:
        """Count the lines that no load counts, and return them for a Series. `is_end`: no other load follows."""
        lines = self._lines.join_asof(self._marks, strategy="forward", **_BY_TIME)
        newest_s = pl.col("time_s").filter(pl.col("requests") > 0).max().over("process")
        waits = pl.col("is_load").is_null() & (pl.col("time_s") > newest_s - _LOAD_WITHIN_S) & (not is_end)
        waiting = lines.filter(waits & (pl.col("requests") > 0)).drop("is_load")
        known = lines.group_by("process").agg(pl.col("time_s").max(), code=pl.lit(""), requests=pl.lit(0, pl.Int64))
        self._lines = pl.concat([waiting, known]).sort("time_s")
        self._marks = self._marks.group_by("process", maintain_order=True).last()
        settled = lines.filter(~waits & ~pl.col("is_load").fill_null(False) & (pl.col("requests") > 0))
        for code, requests in settled.group_by("code", maintain_order=True).agg(pl.col("requests").sum()).iter_rows():
            tally_of(self.by_code, code).count += requests
        return settled.select(
            "time_s",
            pl.col("requests").alias("refused"),
            *[(pl.col("requests") * (pl.col("code") == code)).alias(name) for code, name in _COUNTED_AS.items()],
        )

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

    def _left_out(self, rows: Any) -> Any:
        """The lines over the limit before some rows. They follow the line before them at once."""
        before = self._lines.select("process", "time_s", before_s="time_s")
        found = rows.sort("time_s").join_asof(before, strategy="backward", allow_exact_matches=False, **_BY_TIME)
        found = found.with_columns(time_s=pl.coalesce("before_s", "time_s"), requests=pl.col("suppressed"))
        return found.select(self._lines.columns)


def _process(log: str) -> Any:
    return pl.concat_str(pl.lit(log), *[pl.col(key).cast(pl.String).fill_null("") for key in _PROCESS], separator="\0")
