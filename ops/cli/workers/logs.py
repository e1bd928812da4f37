"""`penstock logs`: inspect the workers' JSON logs."""

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from penstock.ops.cli.terminal import EXIT_OK, EXIT_PROBLEM, BadUsage, ends_with_code, say, stderr
from penstock.ops.logs.errors import BadFilter
from penstock.ops.logs.lines.filters import Filters, parse_filters, split_arguments
from penstock.ops.logs.lines.reader import LogReader
from penstock.ops.logs.lines.source import STDIN, find_sources, told_apart
from penstock.ops.logs.screens.request import RequestStory
from penstock.ops.logs.screens.screens import SCREENS, Screen
from penstock.ops.logs.screens.summary import notes
from penstock.ops.logs.screens.summary import summary as summary_of
from penstock.ops.logs.screens.tables import event_line, make_console, show
from penstock.ops.logs.totals.digest import Digest
from penstock.ops.logs.totals.facts import facts

logs = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="""Inspect the workers' JSON logs: files, directories, gzip, zstd, journalctl -o json, or - for standard input.

Arguments with =, > or < are filters, in any place: model=intents code=too_long p>50ms since=10m level=warning worker=2
event=batch_*. p is the time of a request or a batch. Times are UTC, as in the logs.""",
)

_POLL_S = 0.25
_LONG_BYTES = 100_000_000  # of files whose reading has a bar
Input = Annotated[list[str] | None, typer.Argument(metavar="[FILE...] [FILTER...]", show_default=False)]
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="How many.")]


@logs.command()
@ends_with_code(BadFilter)
def summary(
    given: Input = None, as_json: Annotated[bool, typer.Option("--json", help="Figures as JSON.")] = False
) -> int:
    """Show everything on one screen: throughput, latency, stages, batches, errors, slow periods, workers.

    $ penstock logs summary /var/log/penstock since=1h
    """

    digest = _digest(given)
    if as_json:
        print(json.dumps(_as_json(digest), indent=2))
    else:
        show(make_console(), summary_of(digest))
    return EXIT_OK


@logs.command()
@ends_with_code(BadFilter)
def request(
    request_id: Annotated[
        str, typer.Argument(metavar="ID", help="Correlation id, TOPIC-PARTITION-OFFSET or P:OFFSET.")
    ],
    given: Input = None,
) -> int:
    """Show what the logs know of one request, from its producer to the reply.

    $ penstock logs request penstock.requests.intents-3-1234 worker.log

    Exit code 1: no line names it.
    """

    files, filters = _arguments(given)
    story, reader = RequestStory(request_id), _reader(files, filters)
    for part in reader.parts():
        story.add(part)
    show(make_console(), story.parts(reader.sources))
    return EXIT_OK if story.found else EXIT_PROBLEM


def _add_screen(name: str, screen: Screen) -> None:
    """A command that shows a screen, with an option for its number of rows if it has one."""

    def show_rows(given: Input = None, count: Count = screen.num_rows) -> int:
        return _show(given, screen, count)

    def show_all(given: Input = None) -> int:
        return _show(given, screen, 0)

    command = ends_with_code(BadFilter)(show_rows) if screen.num_rows else ends_with_code(BadFilter)(show_all)
    logs.command(name, help=screen.help)(command)


for _name, _screen in SCREENS.items():
    _add_screen(_name, _screen)


@logs.command()
@ends_with_code(BadFilter)
def tail(
    given: Input = None,
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="How many of the last lines.")] = 20,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Go on with new lines, until Ctrl-C.")] = True,
) -> int:
    """Show the last lines that pass the filters, merged by time, and follow: through rotation and truncation too.

    $ penstock logs tail /var/log/penstock level=warning
    """
    from penstock.ops.logs.lines.tail import Tail

    files, filters = _arguments(given)
    console = make_console()
    with closing(Tail(files, filters)) as end:
        for event in end.last(count, is_end=not follow):
            console.print(event_line(event, end.sources), soft_wrap=True)
        for events in end.follow(lambda: time.sleep(_POLL_S)) if follow else ():
            for event in events:
                console.print(event_line(event, end.sources), soft_wrap=True)
    return EXIT_OK


@logs.command()
@ends_with_code(BadFilter)
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="Log or directory of one run.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Of the other.")],
    given: Annotated[list[str] | None, typer.Argument(metavar="[FILTER...]", show_default=False)] = None,
) -> int:
    """Compare the figures of two runs, or of two versions.

    $ penstock logs diff before.log after.log
    """
    from penstock.ops.logs.screens.diff_screen import diff as diff_of

    files, texts = split_arguments(given or [])
    if files:
        raise BadUsage(f"diff compares two logs or directories. Given too: {', '.join(files)}")
    filters = _filters(texts)
    both = [Digest(_reader([name], filters)) for name in (first, second)]
    show(make_console(), diff_of(both[0], both[1], told_apart([Path(first), Path(second)])))
    return EXIT_OK


@logs.command()
@ends_with_code(BadFilter)
def report(
    out: Annotated[Path, typer.Argument(metavar="OUT.html|OUT.png", help="The page, or one picture of its plots.")],
    given: Input = None,
) -> int:
    """Write one self-contained page with plots: throughput, latency, triggers, padding, cache, lag, errors.

    $ penstock logs report last-night.html /var/log/penstock since=22:00
    """
    from penstock.ops.logs.report.report import write_report

    write_report(out, lambda: _digest(given))
    say(f"Written: {out}")
    return EXIT_OK


def _show(given: list[str] | None, screen: Screen, num_rows: int) -> int:
    digest, console = _digest(given), make_console()
    show(console, screen.parts(digest, num_rows))
    show(console, notes(digest))
    return EXIT_OK


def _digest(given: list[str] | None) -> Digest:
    files, filters = _arguments(given)
    with _reading_bar(files) as progress:
        reader = _reader(files, filters, progress)
        digest = Digest(reader)
    if filters and not digest.num_kept:
        absent = ", ".join(sorted(reader.selection.absent_fields))
        say(f"No event passes the filters.{f' No event has the field {absent}.' if absent else ''}", "yellow")
    return digest


@contextmanager
def _reading_bar(files: Sequence[str]) -> Iterator[Callable[[int], None] | None]:
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


def _arguments(given: list[str] | None) -> tuple[list[str], Filters]:
    """Files and filters. Without a file it is standard input, unless that is a terminal."""
    files, texts = split_arguments(given or [])
    if not files:
        if sys.stdin.isatty():
            raise BadUsage("Name a log, a directory of logs, or - for standard input.")
        files = [STDIN]
    return files, _filters(texts)


def _filters(texts: Sequence[str]) -> Filters:
    return parse_filters(texts, time.time())


def _reader(files: Sequence[str], filters: Filters, progress: Callable[[int], None] | None = None) -> LogReader:
    sources, skipped = find_sources(files)
    if skipped:
        names = ", ".join(skipped[:3]) + (" …" if len(skipped) > 3 else "")
        say(f"Left out, because no event is in it: {names}", "dim")
    return LogReader(sources, filters, progress)


def _as_json(digest: Digest) -> dict[str, dict[str, float | None]]:
    """Figures by section; null where the logs do not tell."""
    found: dict[str, dict[str, float | None]] = {}
    for fact in facts(digest).values():
        found.setdefault(fact.section, {})[fact.name] = None if math.isnan(fact.value) else round(fact.value, 9)
    lines = digest.lines
    found["lines"] = {name: getattr(lines, name) for name in ("lines", "events", "broken", "foreign", "timeless")}
    return found
