"""Progress of reading files: a bar on a terminal."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from penstock.ops.cli.terminal import stderr

_LONG_BYTES = 100_000_000


@contextmanager
def reading_bar(files: Sequence[str]) -> Iterator[Callable[[int], None] | None]:
    """A function to call with the bytes that were read; None where no bar is shown, as for small files."""
    num_bytes = sum(Path(name).stat().st_size for name in files if Path(name).is_file())
    console = stderr()
    if not console.is_terminal or num_bytes < _LONG_BYTES:
        yield None
        return
    columns = BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=num_bytes)
        yield lambda done: bar.update(task, completed=done)
