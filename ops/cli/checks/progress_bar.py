"""The bar of a command that compares, on stderr."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from penstock.ops.cli.terminal import stderr

_EVERY_S = 0.1


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Gives `show(done, total)`, which costs little and may be called for each record. Nothing without a terminal."""
    console = stderr()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=None)
        shown_at = 0.0

        def show(done: int, total: int) -> None:
            nonlocal shown_at
            if (now := time.monotonic()) - shown_at >= _EVERY_S:
                shown_at = now
                progress.update(task, completed=done, total=total)

        yield show
