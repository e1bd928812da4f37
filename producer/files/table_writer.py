"""Writers of tables: the input's rows with their results. See `penstock.producer.files`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from penstock.producer.answer_stream import Result
from penstock.producer.files.encoders import ResultColumns, TableEncoder
from penstock.producer.files.job_manifest import FileJob
from penstock.producer.files.job_report import JobReport, ReplyTally
from penstock.producer.files.part_directory import PartDirectory, kept_manifest, parts_path
from penstock.producer.files.part_writer import PartWriter, refuse_existing
from penstock.producer.files.row_blocks import Block, TableError, cannot_write
from penstock.producer.files.standard_streams import STANDARD
from penstock.producer.files.table_reader import FORMATS, Reader, format_of
from penstock.producer.one_revision import OneRevision
from penstock.producer.wire.messages import NO_OPTIONS, Options


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
    encoder = _encoder(path, format_of(path), reader, task, options)
    job = FileJob.of(reader.paths, reader.texts, task, options, model, path.suffix.lower())
    try:
        directory = PartDirectory(path, job, restart=restart or STANDARD in reader.paths)
    except OSError as error:
        raise cannot_write(path, error) from error
    writer = PartWriter(path, directory, encoder, overwrite=overwrite, allow_mixed_revisions=allow_mixed_revisions)
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
    _encoder(path, format_of(path, standard_format), reader, task, options)
    if path == STANDARD:
        return 0
    kept = None if restart or STANDARD in reader.paths else kept_manifest(path)
    if kept is not None:
        kept.check_job(
            FileJob.of(reader.paths, reader.texts, task, options, model, path.suffix.lower()), parts_path(path)
        )
    if kept is None or not kept.is_of(path):
        refuse_existing(path, overwrite)
    folder = path.absolute().parent
    if not os.access(folder, os.W_OK | os.X_OK):
        fault = "is not writable" if folder.is_dir() else "is missing"
        raise TableError(f"{path} cannot be written: {folder} {fault}.")
    return 0 if kept is None else kept.report.rows


def _encoder(path: Path, extension: str, reader: Reader, task: str, options: Options) -> TableEncoder:
    """The encoder of the output. Raises TableError if the output, or its format, cannot hold the input's rows."""
    if path == STANDARD and extension == ".parquet":
        raise TableError("Standard output is csv or jsonl. Write Parquet to a file.")
    if reader.columns is None and extension != ".jsonl":
        raise TableError(f"{path}: lines of JSON have no common columns; write a .jsonl file.")
    return FORMATS[extension].encoder(reader.columns, reader.schema, ResultColumns(task, options))


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
        self.tally = ReplyTally()
        self.revision = OneRevision(allow_mixed=allow_mixed_revisions)
        self.report = JobReport()
        self._file = file
        self._encoder = _encoder(STANDARD, extension, reader, task, options)
        self._put(self._encoder.header)

    def write(self, block: Block, results: Sequence[Result]) -> None:
        """Write the block's rows with one result each. Called in the order of the file. Raises TableError."""
        self._put(self._encoder.encode(block, results))
        self.report.add(block, results)

    def _put(self, content: bytes) -> None:
        try:
            self._file.write(content)
            self._file.flush()
        except OSError as error:
            raise cannot_write("Standard output", error) from error
