"""Progress of a job over files, and its final report.

Progress is a bar on a terminal, a line every ten seconds elsewhere, and one message when it stalls.
"""

import dataclasses
import datetime
import json
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from pydantic import TypeAdapter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from penstock.ops.cli.terminal import say, stderr
from penstock.producer.files.file_job import BulkResult
from penstock.producer.files.job_report import JobReport, ReplyTally

LINE_EVERY_S = 10.0
STALLED_AFTER_S = 10.0
_SHOWN_LABELS = 10


class JobScreen:
    """A context manager. The job calls `show` after each written block, and `tick` several times a second."""

    def __init__(
        self, resumed: BulkResult, total: int | None, stalled: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`resumed`: rows of earlier runs. `total`: rows in all, None if not counted.

        `stalled`: message for a job without an answer for STALLED_AFTER_S.
        """
        self._written = resumed
        self._total = total
        self._is_about = total is None
        self._stalled = stalled
        self._clock = clock
        self._begun = self._moved_at = self._line_at = clock()
        self._is_stalled = False
        self._rows = self._line_rows = resumed.rows
        self._answered = 0
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        console = stderr()
        if console.is_terminal:
            texts = (TextColumn("{task.fields[rate]}"), TextColumn("[red]{task.fields[failed]}"))
            self._bar = Progress(
                BarColumn(bar_width=None), MofNCompleteColumn(), *texts, console=console, transient=True
            )
            self._task = self._bar.add_task("", total=self._total, completed=self._rows, rate="", failed="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, written: BulkResult, estimated_total: int | None = None) -> None:
        """Take the rows written so far. `estimated_total`: rows in all, used where they are not counted."""
        self._written = written
        if self._is_about:
            self._total = estimated_total

    def tick(self, answered: int, tokens: int = 0) -> None:
        """Show the rows that are answered. Print the stall message once, if none was for STALLED_AFTER_S.

        Args:
            answered: rows of this run that have a result, written or not: a block of a slow model takes minutes. Of
                rows with several inputs it counts these, and is then no number of rows.
            tokens: of these rows; 0 if the workers do not tell them.
        """
        now, written = self._clock(), self._written
        most = written.resumed + answered if self._total is None else min(written.resumed + answered, self._total)
        rows = max(written.rows, most)
        if (rows, answered) != (self._rows, self._answered):
            self._rows, self._answered, self._moved_at, self._is_stalled = rows, answered, now, False
        done = dataclasses.replace(written, rows=rows, seconds=now - self._begun)
        shown = f"{rates(done, tokens)}{_left(done, self._total)}"
        if self._bar is not None:
            failed = f"{done.failed:,} failed" if done.failed else ""
            self._bar.update(self._task, total=self._total, completed=rows, rate=shown, failed=failed)
        elif now - self._line_at >= LINE_EVERY_S and rows != self._line_rows:
            self._line_at, self._line_rows = now, rows
            of = f" of {'about ' if self._is_about else ''}{self._total:,}" if self._total is not None else ""
            say(f"{rows:,}{of} rows, {done.failed:,} failed, {shown}")
        if not self._is_stalled and now - self._moved_at >= STALLED_AFTER_S:
            self._is_stalled = True
            say(self._stalled, "yellow")


def rates(done: BulkResult, tokens: int) -> str:
    """Rows per second of this run and, if they are known, its tokens per second, formatted."""
    rows = f"{_rate(done.rows_per_s)} rows/s"
    return f"{rows}, {_rate(tokens / done.seconds)} tokens/s" if tokens and done.seconds > 0 else rows


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"


def _left(done: BulkResult, total: int | None) -> str:
    """Time that the remaining rows take, formatted for the end of a line; nothing if it is unknown."""
    if total is None or done.rows_per_s == 0:
        return ""
    seconds = round(max(total - done.rows, 0) / done.rows_per_s)
    return f", {datetime.timedelta(seconds=seconds)} left"


def print_summary(done: BulkResult, report: JobReport, tally: ReplyTally, output: str) -> None:
    """Print the report on stderr."""
    resumed = f" ({done.resumed:,} of earlier runs)" if done.resumed else ""
    speed = f"{done.seconds:.1f} s, {rates(done, tally.tokens)}"
    say(f"{done.rows:,} rows{resumed}, {done.failed:,} failed, {speed}: {output}")
    if report.labels:
        others = len(report.labels) - _SHOWN_LABELS
        more = f", {others:,} labels more" if others > 0 else ""
        say(f"Labels: {_counts(dict(report.labels.most_common(_SHOWN_LABELS)))}{more}")
    print_lengths(report)
    if tally.cached:
        say(f"From the workers' cache: {tally.cached / tally.rows:.0%} of the answers")
    if report.errors:
        say(f"Errors: {_counts(dict(report.errors.most_common()))}", "yellow")
        say("The output holds the reason of each failed row.", "yellow")


def print_lengths(report: JobReport) -> None:
    """Print the histogram of lengths."""
    if report.lengths:
        say(f"Characters: {_counts({f'up to {chars:,}:': count for chars, count in sorted(report.lengths.items())})}")


def summary_json(done: BulkResult, report: JobReport, tally: ReplyTally) -> bytes:
    """The content of `--report`. Throughput and the cache's part are those of the last run."""
    last_run = {
        "seconds": round(done.seconds, 3),
        "rows_per_s": round(done.rows_per_s, 1),
        "resumed_rows": done.resumed,
        "tokens": tally.tokens,
        "tokens_per_s": round(tally.tokens / done.seconds, 1) if done.seconds > 0 else 0.0,
        "answered_rows": tally.rows,
        "cached_rows": round(tally.cached),
    }
    of_all_runs = TypeAdapter(JobReport).dump_python(report, mode="json")
    return json.dumps({**of_all_runs, "last_run": last_run}, indent=2, ensure_ascii=False).encode() + b"\n"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())
