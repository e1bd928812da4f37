"""Progress of a bulk job: a bar on a terminal, a line every ten seconds elsewhere, and one message when it stalls."""

import datetime
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from penstock.ops.cli.terminal import say, stderr

if TYPE_CHECKING:
    from penstock.producer.files.file_job import BulkResult

LINE_EVERY_S = 10.0
STALLED_AFTER_S = 10.0


class JobScreen:
    """A context manager. The job calls `show` after each step, and `tick` once per second in any case."""

    def __init__(self, total: int | None, stalled: str, clock: Callable[[], float] = time.monotonic) -> None:
        """`total`: rows, None if not counted. `stalled`: message for a job without an answer for STALLED_AFTER_S."""
        self._total = total
        self._stalled = stalled
        self._clock = clock
        self._moved_at = self._line_at = clock()
        self._is_stalled = False
        self._answered = 0
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        console = stderr()
        if console.is_terminal:
            self._bar = Progress(
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
                TextColumn("[red]{task.fields[failed]}"),
                console=console,
                transient=True,
            )
            self._task = self._bar.add_task("", total=self._total, rate="", failed="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done: "BulkResult", tokens: int = 0, estimated_total: int | None = None) -> None:
        """Show the rows written so far.

        Args:
            tokens: of this run's rows; 0 if the workers do not tell them.
            estimated_total: rows in all, used where they are not counted.
        """
        total = estimated_total if self._total is None else self._total
        now = self._clock()
        self._moved_at = now
        self._is_stalled = False
        if self._bar is not None:
            failed = f"{done.failed:,} failed" if done.failed else ""
            self._bar.update(self._task, total=total, completed=done.rows, rate=rates(done, tokens), failed=failed)
        elif now - self._line_at >= LINE_EVERY_S:
            self._line_at = now
            about = "about " if self._total is None else ""
            of = f" of {about}{total:,}" if total is not None else ""
            say(f"{done.rows:,}{of} rows, {done.failed:,} failed, {rates(done, tokens)}{_left(done, total)}")

    def tick(self, answered: int) -> None:
        """Print the stall message once, if no row was answered or written for STALLED_AFTER_S.

        Args:
            answered: rows of this run, written or not. Of a slow model, a block takes longer.
        """
        if answered != self._answered:
            self._answered, self._moved_at, self._is_stalled = answered, self._clock(), False
        if not self._is_stalled and self._clock() - self._moved_at >= STALLED_AFTER_S:
            self._is_stalled = True
            if self._bar is not None:
                self._bar.console.print(self._stalled, style="yellow", markup=False)
            else:
                say(self._stalled, "yellow")


def rates(done: "BulkResult", tokens: int) -> str:
    """Rows per second of this run and, if they are known, its tokens per second, formatted."""
    rows = f"{_rate(done.rows_per_s)} rows/s"
    return f"{rows}, {_rate(tokens / done.seconds)} tokens/s" if tokens and done.seconds > 0 else rows


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.1f}"


def _left(done: "BulkResult", total: int | None) -> str:
    """Time that the remaining rows take, formatted for the end of a line; nothing if it is unknown."""
    if total is None or done.rows_per_s == 0:
        return ""
    seconds = round(max(total - done.rows, 0) / done.rows_per_s)
    return f", {datetime.timedelta(seconds=seconds)} left"
