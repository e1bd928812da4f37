"""Writers of tables: the input's rows with their results. See `penstock.producer.files`."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from penstock.producer.answer_stream import Result
from penstock.producer.files.encoders import ArrowEncoder, CsvEncoder, JsonlEncoder, TableEncoder
from penstock.producer.files.job_manifest import describe_job
from penstock.producer.files.job_report import JobReport, ReplyTally
from penstock.producer.files.part_directory import PartDirectory, kept_manifest, parts_path
from penstock.producer.files.part_writer import PartWriter, refuse_existing
from penstock.producer.files.result_columns import ResultColumns
from penstock.producer.files.row_blocks import Block, TableError, cannot_write
from penstock.producer.files.standard_streams import STANDARD
from penstock.producer.files.table_reader import Reader, by_extension, format_of
from penstock.producer.one_revision import OneRevision
from penstock.producer.wire.messages import NO_OPTIONS, Options

_ENCODERS: dict[str, Callable[[Sequence[str] | None, Any, Sequence[str]], TableEncoder]] = {
    ".csv": CsvEncoder,
    ".jsonl": JsonlEncoder,
    ".parquet": ArrowEncoder,
}


def open_writer(
    path: str | Path,
    reader: Reader,
    task: str,
    *,
    model: str = "",
    options: Options = NO_OPTIONS,
    overwrite: bool = False,
    restart: bool = False,
    allow_mixed_revisions: bool = False,
) -> PartWriter:
    """Create the output of a job that reads from `reader`, or continue it: `reader` then leaves out finished rows.

    Args:
        task: "embed", "classify", "generate" or "rerank", which decides the result columns.
        model: name of the model. A job of another model, task, input or options is not continued.
        restart: discard the finished rows of an earlier run.
        allow_mixed_revisions: answers may come from several revisions of the model; see `OneRevision`.

    Raises:
        TableError: the file exists and `overwrite` is off, its format is unknown, it cannot be created, or its parts
            are of another job.
    """
    path = Path(path)
    columns = ResultColumns(task, options)
    encoder = _encoder(path, reader, columns)
    job = _job(path, reader, task, model, options)
    try:
        directory = PartDirectory(path, job, restart=restart or STANDARD in reader.paths)
    except OSError as error:
        raise cannot_write(path, error) from error
    writer = PartWriter(
        path, directory, encoder, columns, overwrite=overwrite, allow_mixed_revisions=allow_mixed_revisions
    )
    if not directory.is_published:
        try:
            refuse_existing(path, overwrite)
            directory.checked_parts()
        except TableError as error:
            writer.__exit__(type(error), error, None)
            raise
    reader.skip(writer.kept_rows)
    return writer


def check_writer(
    path: Path,
    reader: Reader,
    task: str,
    *,
    model: str = "",
    options: Options = NO_OPTIONS,
    overwrite: bool = False,
    restart: bool = False,
    standard_format: str | None = None,
) -> int:
    """Check what a job would check before it begins, and write nothing. Returns the rows that it would continue after.

    Raises TableError where the job would be refused.
    """
    if path == STANDARD:
        _check_stream(reader, format_of(STANDARD, standard_format))
        return 0
    _encoder(path, reader, ResultColumns(task, options))
    kept = None if restart or STANDARD in reader.paths else kept_manifest(path)
    if kept is not None:
        kept.check_job(_job(path, reader, task, model, options), parts_path(path))
    if kept is None or not kept.is_of(path):
        refuse_existing(path, overwrite)
    folder = path.absolute().parent
    if not os.access(folder, os.W_OK | os.X_OK):
        fault = "is not writable" if folder.is_dir() else "is missing"
        raise TableError(f"{path} cannot be written: {folder} {fault}.")
    return 0 if kept is None else kept.report.rows


def _encoder(path: Path, reader: Reader, columns: ResultColumns) -> TableEncoder:
    """The encoder of the output. Raises TableError if its format is unknown, or cannot hold the input's rows."""
    make_encoder: Callable[..., TableEncoder] = by_extension(path, _ENCODERS)
    _check_columns(path, reader, path.suffix.lower())
    return make_encoder(reader.columns, reader.schema, columns.names)


def _job(path: Path, reader: Reader, task: str, model: str, options: Options) -> dict[str, Any]:
    defaults = NO_OPTIONS._asdict()
    given = {name: value for name, value in options._asdict().items() if value != defaults[name]}
    return describe_job(
        inputs=reader.paths,
        texts=reader.texts,
        task=task,
        options=json.loads(json.dumps(given)),  # as the manifest is read again
        model=model,
        extension=path.suffix.lower(),
    )


class StreamWriter:
    """Writer to standard output, which no later run continues."""

    def __init__(
        self,
        file: IO[bytes],
        extension: str,
        reader: Reader,
        task: str,
        options: Options,
        *,
        allow_mixed_revisions: bool = False,
    ) -> None:
        """Write the header. Raises TableError for an extension other than .csv and .jsonl."""
        _check_stream(reader, extension)
        self.tally = ReplyTally()
        self.revision = OneRevision(allow_mixed=allow_mixed_revisions)
        self.report = JobReport()
        self._file = file
        self._columns = ResultColumns(task, options)
        self._encoder = _ENCODERS[extension](reader.columns, reader.schema, self._columns.names)
        self._put(self._encoder.header)

    def write(self, block: Block, results: Sequence[Result]) -> None:
        """Write the block's rows with one result each. Called in the order of the file. Raises TableError."""
        self._put(self._encoder.encode(block, self._columns.of(results)))
        self.report.add(block, results)

    def _put(self, content: bytes) -> None:
        try:
            self._file.write(content)
            self._file.flush()
        except OSError as error:
            raise cannot_write("Standard output", error) from error


def _check_stream(reader: Reader, extension: str) -> None:
    if extension == ".parquet":
        raise TableError("Standard output is csv or jsonl. Write Parquet to a file.")
    _check_columns(STANDARD, reader, extension)


def _check_columns(path: Path, reader: Reader, extension: str) -> None:
    if reader.columns is None and extension != ".jsonl":
        raise TableError(f"{path}: lines of JSON have no common columns; write a .jsonl file.")
