"""Settings and arguments of `penstock embed`, `classify`, `generate` and `rerank`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

import typer
from pydantic import AfterValidator, Field

from penstock.ops.cli.terminal import BadUsage
from penstock.producer.files.object_path import file_path
from penstock.producer.files.row_blocks import TableError
from penstock.producer.settings import ClientSettings
from penstock.producer.wire.topics import check_served_name, served_name_of

_PATHS_HELP = (
    "Files to read (.csv, .jsonl or .parquet), directories or quoted patterns of them, and the file to write: paths or "
    "s3://, gs://, abfs:// and hf:// URLs. -: standard input or output."
)


def _path(given: str) -> Path:
    try:
        return file_path(given)
    except TableError as error:
        raise typer.BadParameter(str(error)) from error


Paths = Annotated[
    list[Path] | None, typer.Argument(metavar="IN... OUT", help=_PATHS_HELP, show_default=False, parser=_path)
]
_TEXT_HELP = "One text, in place of IN and OUT. Its answer is printed, as JSON when piped."
OneText = Annotated[str | None, typer.Option("--text", help=_TEXT_HELP)]


def _check_model(model: str) -> str:
    check_served_name(served_name_of(model))
    return model


class FileJobSettings(ClientSettings):
    """Settings of the four commands: the client's, and those of a job over files."""

    model: Annotated[str, AfterValidator(_check_model)] = Field(
        description="The model's served name, or its checkpoint, whose last part is the name. With --local: the "
        "checkpoint, a directory or a Hugging Face id."
    )
    local: bool = Field(
        False,
        description="Start Kafka and a worker on this machine for this command alone, and end them with it. Needs Java "
        "17. The worker reads its device, dtype and head from its environment variables and configuration file.",
    )
    timeout_s: float = Field(
        3600.0, gt=0, description="Longest wait of a row for its answer, outages of Kafka and workers included."
    )
    truncate: bool = Field(False, description="Truncate texts that are too long. Otherwise their rows fail.")
    overwrite: bool = Field(False, description="Replace the output file if it exists.")
    restart: bool = Field(False, description="Discard the finished rows of an earlier run instead of continuing it.")
    max_errors: int | None = Field(
        None,
        ge=0,
        description="End the job when more rows have failed, those of earlier runs included. Default: never.",
    )
    fail_fast: bool = Field(False, description="End the job at the first failed row: --max-errors 0.")
    wait: bool = Field(
        False, description="Wait for workers. Otherwise a job ends with exit code 2 if none serves the model."
    )
    format: Literal["csv", "jsonl", "openai"] | None = Field(
        None,
        description="Format of standard input and output. openai: OpenAI's batch files of requests to /v1/embeddings, "
        "of standard input and output and of .jsonl files; for penstock embed.",
    )
    dry_run: bool = Field(False, description="Print the rows, their lengths and an estimate of the time; send nothing.")
    report: Path | None = Field(None, description="File to write the final report to, as JSON.")

    @property
    def served_name(self) -> str:
        """Name that requests use."""
        return served_name_of(self.model)

    @property
    def standard_format(self) -> str | None:
        """The extension of `format`; "openai" as it is, which is none."""
        return self.format if self.format in (None, "openai") else f".{self.format}"

    @property
    def most_errors(self) -> int | None:
        """Failed rows that do not end the job; None: any number."""
        return 0 if self.fail_fast else self.max_errors


def check_report(settings: FileJobSettings, files: Iterable[Path]) -> None:
    """Raise BadUsage if the file of `report` cannot be made, or is one of the job's own `files`."""
    report = settings.report
    if report is None:
        return
    if report.is_dir():
        raise BadUsage(f"--report {report} is a directory; a file was expected.")
    folder = report.absolute().parent
    if not folder.is_dir():
        raise BadUsage(f"--report {report}: there is no directory {folder}.")
    if any(path.resolve() == report.resolve() for path in files):
        raise BadUsage(f"--report {report} is a file of the job; name another.")


class JobSettings(FileJobSettings):
    """Settings of a job over one column."""

    column: str = Field("text", description="Column (CSV, Parquet) or key (JSONL) that holds the text.")
