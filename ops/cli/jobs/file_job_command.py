"""A job over files on the command line: what it prints, how it ends, and what remains when it does not finish."""

import asyncio
import dataclasses
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path

import uvloop

from penstock.ops.cli.jobs.fleet_probe import missing_fleet
from penstock.ops.cli.jobs.job_settings import FileJobSettings, check_report
from penstock.ops.cli.jobs.local_fleet import local_broker, local_worker
from penstock.ops.cli.jobs.one_text import client_settings
from penstock.ops.cli.jobs.progress import JobScreen, print_summary, summary_json
from penstock.ops.cli.terminal import EXIT_OK, EXIT_PROBLEM, EXIT_USAGE, BadUsage, fail, say
from penstock.producer.errors import MixedRevisions
from penstock.producer.files import (
    JobOutput,
    OutputError,
    PartWriter,
    Reader,
    StreamWriter,
    TableError,
    count_rows,
    open_reader,
)
from penstock.producer.files.durable import write_synced
from penstock.producer.files.file_job import FLEET_ERRORS, BulkResult, TooManyErrors, run_bulk
from penstock.producer.files.input_paths import input_paths
from penstock.producer.files.job_report import ReplyTally
from penstock.producer.files.standard_streams import STANDARD, end_input
from penstock.producer.files.versioned_tables import table_files, table_versions
from penstock.producer.wire.messages import Options

_Writer = PartWriter | StreamWriter

_TICK_S = 0.2  # of the progress on the screen


def run_file_job(
    task: str,
    settings: FileJobSettings,
    options: Options,
    columns: Sequence[str],
    sources: Sequence[Path],
    target: Path,
) -> int:
    """Read, send, write; with `--dry-run` only read. Invalid files are found before any connection to Kafka.

    Returns the exit code.
    """
    output = JobOutput(
        target,
        task,
        settings.served_name,
        options,
        settings.overwrite,
        settings.restart,
        settings.allow_mixed_revisions,
        settings.standard_format,
    )
    writer: _Writer | None = None
    try:
        output = dataclasses.replace(output, tables=table_versions(sources, output.kept_tables))
        for table, version in output.tables.items():
            say(f"Reading version {version} of {table}.")
        tables = table_files(sources, output.tables)
        paths = input_paths(sources, target, tables)
        check_report(settings, [*paths, target])
        opened = open_reader(
            paths,
            columns,
            standard_format=settings.standard_format,
            model=settings.served_name,
            of_tables={file: table.missing.get(file, {}) for table in tables.values() for file in table.paths},
        )
        with opened as reader, ExitStack() as stack:
            if settings.dry_run:
                from penstock.ops.cli.jobs.job_estimate import estimate_job  # imports what a run does not need

                estimate_job(settings, output, reader)
                return EXIT_OK
            writer = stack.enter_context(_opened(output, reader))
            total = count_rows(paths)
            with local_broker(settings) as reaching:
                begun, done = uvloop.run(_all_rows(reaching, output, reader, writer, total))
    except TableError as error:
        fail(str(error))
        _say_what_is_kept(writer)
        return EXIT_PROBLEM if isinstance(error, OutputError) else EXIT_USAGE
    except FLEET_ERRORS as error:
        fail(f"{error.code}: {error.message}")
        _say_what_is_kept(writer)
        return EXIT_USAGE
    except TooManyErrors as error:
        fail(f"{error} More are allowed with a higher --max-errors.")
        _say_what_is_kept(writer)
        return EXIT_PROBLEM
    except MixedRevisions as error:
        fail(f"{error.code}: {error.message}")
        if _say_what_is_kept(writer):
            say("They are of the first revision. --restart discards them; --allow-mixed-revisions adds rows of others.")
        return EXIT_PROBLEM
    except KeyboardInterrupt:
        if not _say_what_is_kept(writer) and not settings.dry_run:
            say(f"{_name(target)} was not written.")
        raise
    done = dataclasses.replace(done, seconds=time.monotonic() - begun)  # with the end of the output
    print_summary(done, writer.report, writer.tally, _name(target))
    if settings.report is not None:
        try:
            write_synced(settings.report, summary_json(done, writer.report, writer.tally))
        except OSError as error:
            fail(f"--report {settings.report} cannot be written: {error.strerror or error}.")
            return EXIT_PROBLEM
    return EXIT_PROBLEM if done.failed else EXIT_OK


def _opened(output: JobOutput, reader: Reader) -> AbstractContextManager[_Writer]:
    if output.path != STANDARD:
        return output.open(reader)
    return nullcontext(StreamWriter(sys.stdout.buffer, output, reader))


def _say_what_is_kept(writer: _Writer | None) -> bool:
    if not isinstance(writer, PartWriter) or writer.kept_rows == 0 or not writer.is_resumable:
        return False
    say(f"{writer.kept_rows:,} finished rows are kept in {writer.path}.parts. The same command continues after them.")
    return True


def _name(target: Path) -> str:
    return "standard output" if target == STANDARD else str(target)


async def _all_rows(
    settings: FileJobSettings, output: JobOutput, reader: Reader, writer: _Writer, total: int | None
) -> tuple[float, BulkResult]:
    """Run the job. Returns when it began, without the start of a worker of its own, and what it did."""
    from penstock.producer.client import Client

    if not settings.local and not settings.wait and (fault := await missing_fleet(settings)):
        raise BadUsage(fault)
    resumed = BulkResult(writer.report.rows, writer.report.failed, 0.0, writer.report.rows)
    if resumed.rows:
        say(f"Continuing after {resumed.rows:,} finished rows.")
    async with local_worker(settings) as while_alive:
        begun = time.monotonic()
        count = partial(writer.tally.add, sequences_per_row=len(output.options.labels or ("",)))
        connected = Client(bulk=True, on_reply=count, **client_settings(settings))
        async with connected as client, _job_screen(settings, reader, resumed, total, writer.tally) as screen:
            job = run_bulk(
                client,
                output.task,
                reader,
                writer,
                options=output.options,
                resumed=resumed,
                max_errors=settings.most_errors,
                on_progress=lambda written: screen.show(written, reader.estimated_rows),
            )
            return begun, await while_alive(job)


@asynccontextmanager
async def _job_screen(
    settings: FileJobSettings, reader: Reader, resumed: BulkResult, total: int | None, tally: ReplyTally
) -> AsyncIterator[JobScreen]:
    """The progress of a job while it runs. At its end nothing more is read from standard input."""
    with JobScreen(resumed, total, _stalled(settings)) as screen:
        ticking = asyncio.create_task(_tick(screen, tally))
        try:
            yield screen
        finally:
            ticking.cancel()
            if STANDARD in reader.paths:
                end_input()


def _stalled(settings: FileJobSettings) -> str:
    if settings.local:
        return "No answer for a while. The rows may be long, or new to the worker. Still waiting; Ctrl-C ends."
    return (
        f"No answer for a while. Is a worker for {settings.served_name!r} running (penstock worker --model …)? "
        f"Is Kafka at {settings.bootstrap_servers} up? Still waiting; Ctrl-C ends."
    )


async def _tick(screen: JobScreen, tally: ReplyTally) -> None:
    while True:
        await asyncio.sleep(_TICK_S)
        screen.tick(tally.rows, tally.tokens)
