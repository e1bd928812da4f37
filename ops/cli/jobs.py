"""Jobs of `penstock embed` and `penstock classify`: one text, or a file of texts."""

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import uvloop
from pydantic import Field
from rich.console import Console
from rich.table import Table

from penstock.ops.cli.progress import JobScreen, rate
from penstock.ops.cli.screen import EXIT_OK, EXIT_PROBLEM, EXIT_USAGE, fail, narrate_logs, say
from penstock.producer.errors import PenstockError
from penstock.producer.settings import ClientSettings
from penstock.producer.wire.messages import Classification, Options, Vector
from penstock.producer.wire.sequences import check

if TYPE_CHECKING:
    from penstock.producer.client import Client
    from penstock.producer.files import Reader, Writer
    from penstock.producer.files.file_job import BulkResult

_FORMATS = ".csv, .jsonl or .parquet"
Source = Annotated[Path | None, typer.Argument(metavar="IN", help=f"File to read: {_FORMATS}.", show_default=False)]
Target = Annotated[Path | None, typer.Argument(metavar="OUT", help=f"File to write: {_FORMATS}.", show_default=False)]
_TEXT_HELP = "One text, in place of IN and OUT. Its answer is printed, as JSON when piped."
OneText = Annotated[str | None, typer.Option("--text", help=_TEXT_HELP)]


class JobSettings(ClientSettings):
    """Settings of both commands: the client's, and how a file is read."""

    timeout_s: float = Field(
        3600.0, gt=0, description="Longest wait of a row for its answer, outages of Kafka and workers included."
    )
    column: str = Field("text", description="Column (CSV, Parquet) or key (JSONL) that holds the text.")
    overwrite: bool = Field(False, description="Replace the output file if it exists.")
    truncate: bool = Field(False, description="Truncate texts that are too long. Otherwise their rows fail.")


_MAX_ONE_TEXT_S = 30.0  # longest wait for the answer to one text
_SHOWN_NUMBERS = 6


def run_job(
    task: str, settings: JobSettings, options: Options, source: Path | None, target: Path | None, text: str | None
) -> int:
    """Run one command and return its exit code."""
    narrate_logs(settings.bootstrap_servers)
    if text is not None and source is None:
        return uvloop.run(_one(task, settings, options, text))
    if source is None or target is None or text is not None:
        fail("Give a file to read and a file to write, or one --text.")
        return EXIT_USAGE
    return _file(task, settings, options, source, target)


def _client(settings: JobSettings, *, bulk: bool) -> "Client":
    from penstock.producer.client import Client

    return Client(bulk=bulk, **{name: getattr(settings, name) for name in ClientSettings.model_fields})


def _stalled(settings: JobSettings) -> str:
    return (
        f"No answer for a while. Is a worker for {settings.model!r} running (penstock worker --model …)? "
        f"Is Kafka at {settings.bootstrap_servers} up? Still waiting; Ctrl-C ends."
    )


async def _one(task: str, settings: JobSettings, options: Options, text: str) -> int:
    _, (checked,) = check([text], None)
    if isinstance(checked, PenstockError):  # before any connection to Kafka
        fail(f"{checked.code}: {checked.message}")
        return EXIT_USAGE
    async with _client(settings, bulk=False) as client:
        (row,) = await client.map(task, [text], options=options, timeout_s=min(settings.timeout_s, _MAX_ONE_TEXT_S))
    if isinstance(row, float | list):
        raise RuntimeError(f"{task} was answered with a row of another task. This is a bug.")
    if isinstance(row, PenstockError):
        fail(f"{row.code}: {row.message}" + _advice(row, settings))
        return EXIT_PROBLEM
    if sys.stdout.isatty():
        Console(highlight=False).print(_as_text(row))
    else:
        print(json.dumps(_as_json(row)))
    return EXIT_OK


def _advice(error: PenstockError, settings: JobSettings) -> str:
    if error.code != "expired":
        return ""
    return f" Is a worker for {settings.model!r} running? Start one: penstock worker --model …"


def _as_json(row: Vector | Classification) -> Any:
    if isinstance(row, Classification):
        return [{"label": label, "score": score} for label, score in zip(row.labels, row.scores, strict=True)]
    return row.tolist()


def _as_text(row: Vector | Classification) -> Table | str:
    if isinstance(row, Classification):
        table = Table("label", "score", box=None, header_style="bold")
        for label, score in zip(row.labels, row.scores, strict=True):
            table.add_row(label, f"{score:.4f}")
        return table
    head = ", ".join(f"{number:.4f}" for number in row[:_SHOWN_NUMBERS])
    return f"[{head}{', …' if len(row) > _SHOWN_NUMBERS else ''}]  {len(row)} dimensions".replace("[", "\\[")


def _file(task: str, settings: JobSettings, options: Options, source: Path, target: Path) -> int:
    """Read, send, write. Invalid files are found before any connection to Kafka."""
    from penstock.producer.files import TableError, count_rows, open_reader, open_writer

    if target.exists() and not settings.overwrite:
        fail(f"{target} exists already. Choose another name, or give --overwrite.")
        return EXIT_USAGE
    try:
        with (
            open_reader(source, settings.column) as reader,
            open_writer(target, reader, task, top_k=options.top_k, overwrite=settings.overwrite) as writer,
        ):
            done = uvloop.run(_all_rows(task, settings, options, reader, writer, count_rows(source)))
    except TableError as error:
        fail(str(error))
        return EXIT_USAGE
    except KeyboardInterrupt:
        say(f"{target} was not written.")
        raise
    say(f"{done.rows:,} rows, {done.failed:,} failed, {done.seconds:.1f} s, {rate(done)} rows/s: {target}")
    if done.failed:
        say("The output's error column holds the reason of each failed row.", "yellow")
    return EXIT_PROBLEM if done.failed else EXIT_OK


async def _all_rows(
    task: str, settings: JobSettings, options: Options, reader: "Reader", writer: "Writer", total: int | None
) -> "BulkResult":
    from penstock.producer.files.file_job import run_bulk

    async with _client(settings, bulk=True) as client:
        with JobScreen(total, _stalled(settings)) as screen:
            ticking = asyncio.create_task(_tick(screen))
            try:
                return await run_bulk(
                    client, task, reader, writer, options=options, timeout_s=settings.timeout_s, on_progress=screen.show
                )
            finally:
                ticking.cancel()


async def _tick(screen: JobScreen) -> None:
    while True:
        await asyncio.sleep(1.0)
        screen.tick()
