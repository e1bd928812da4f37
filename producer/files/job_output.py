"""The output of a job: the rows of its input with their results. See `penstock.producer.files`."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from penstock.producer.answer_stream import Result
from penstock.producer.files.encoders import TableEncoder
from penstock.producer.files.job_manifest import FileJob, Manifest
from penstock.producer.files.job_report import JobReport, ReplyTally
from penstock.producer.files.object_parts import ObjectParts, kept_object_manifest
from penstock.producer.files.object_path import ObjectPath
from penstock.producer.files.openai_reader import URL
from penstock.producer.files.part_directory import PartDirectory, kept_manifest, parts_path
from penstock.producer.files.part_writer import PartWriter, refuse_existing
from penstock.producer.files.result_columns import ResultColumns
from penstock.producer.files.row_blocks import Block, TableError, cannot_write
from penstock.producer.files.standard_streams import STANDARD
from penstock.producer.files.table_reader import OPENAI, Reader, encoder_of, format_of
from penstock.producer.one_revision import OneRevision
from penstock.producer.wire.messages import NO_OPTIONS, Options


@dataclass(frozen=True, slots=True)
class JobOutput:
    """The output of a job, which is written, or checked, for the rows of a reader."""

    path: Path
    task: str  # of those of `result_columns`, which decides the columns
    model: str = ""  # a job of another model, task, input or options is not continued
    options: Options = NO_OPTIONS
    overwrite: bool = False  # of an existing file
    restart: bool = False  # discard the finished rows of an earlier run
    allow_mixed_revisions: bool = False  # answers may come from several revisions of the model; see `OneRevision`
    standard_format: str | None = None  # extension that standard output, `-`, is written as; or OPENAI, of files too
    tables: Mapping[str, int] = field(default_factory=dict)  # of Delta and Iceberg among the inputs: versions by path

    def open(self, reader: Reader) -> PartWriter:
        """Create a file, or continue it: `reader` then leaves out finished rows.

        Raises:
            TableError: the file exists and `overwrite` is off, its format is unknown, it cannot be created, or its
                parts are of another job.
        """
        encoder = self.encoder(reader)
        try:
            directory = _opened_parts(self.path, self._job(reader), self.restart or STANDARD in reader.paths)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        mixed = self.allow_mixed_revisions
        writer = PartWriter(self.path, directory, encoder, overwrite=self.overwrite, allow_mixed_revisions=mixed)
        try:
            if not directory.is_published:
                refuse_existing(self.path, self.overwrite)
                directory.checked_parts()
        except TableError as error:
            writer.__exit__(type(error), error, None)
            raise
        reader.skip(writer.kept_rows)
        return writer

    def check(self, reader: Reader) -> int:
        """Check what a job would check before it begins, and write nothing. Returns the rows that it would keep.

        Raises TableError where the job would be refused.
        """
        self.encoder(reader)
        if self.path == STANDARD:
            return 0
        kept = None if self.restart or STANDARD in reader.paths else self._kept()
        if kept is not None:
            kept.check_job(self._job(reader), parts_path(self.path))
        if kept is None or not kept.is_of(self.path):
            refuse_existing(self.path, self.overwrite)
        folder = self.path.absolute().parent
        if not isinstance(self.path, ObjectPath) and not os.access(folder, os.W_OK | os.X_OK):
            fault = "is not writable" if folder.is_dir() else "is missing"
            raise TableError(f"{self.path} cannot be written: {folder} {fault}.")
        return 0 if kept is None else kept.report.rows

    def kept_tables(self) -> Mapping[str, int]:
        """`tables` of the job that `open` would continue, so that it reads the same rows. Raises TableError."""
        kept = None if self.restart or self.path == STANDARD else self._kept()
        return {} if kept is None else kept.job.tables

    def _kept(self) -> Manifest | None:
        return kept_object_manifest(self.path) if isinstance(self.path, ObjectPath) else kept_manifest(self.path)

    def encoder(self, reader: Reader) -> TableEncoder:
        """Raises TableError if the output's format is unknown, or it cannot hold the input's rows."""
        extension = format_of(self.path, self.standard_format)
        if self.path == STANDARD and extension == ".parquet":
            raise TableError("Standard output is csv or jsonl. Write Parquet to a file.")
        if reader.columns is None and extension not in (".jsonl", OPENAI):
            raise TableError(f"{self.path}: lines of JSON have no common columns; write a .jsonl file.")
        if extension == OPENAI:
            _check_openai(self.task, self.options)
        encoder = encoder_of(self.path, self.standard_format)
        return encoder(reader.columns, reader.schema, ResultColumns(self.task, self.options))

    def _job(self, reader: Reader) -> FileJob:
        extension = format_of(self.path, self.standard_format)
        return FileJob.of(reader.paths, reader.texts, self.task, self.options, self.model, extension, self.tables)


def _check_openai(task: str, options: Options) -> None:
    """Raise TableError for a job that OpenAI's batch files do not have."""
    if task != "embed":
        raise TableError(
            f"OpenAI's batch format is for the task embed, and not for {task}: of its endpoints, {URL} alone has a "
            "counterpart."
        )
    if options.dtype != NO_OPTIONS.dtype:
        raise TableError(f"OpenAI's batch format has vectors of float32, and not {options.dtype}.")


def _opened_parts(target: Path, job: FileJob, restart: bool) -> PartDirectory | ObjectParts:
    if isinstance(target, ObjectPath):
        return ObjectParts(target, job, restart=restart)
    return PartDirectory(target, job, restart=restart)


class StreamWriter:
    """Writer to standard output, which no later run continues."""

    def __init__(self, file: IO[bytes], output: JobOutput, reader: Reader) -> None:
        """Write the header. Raises TableError for a format other than CSV and JSONL."""
        self.tally = ReplyTally()
        self.revision = OneRevision(allow_mixed=output.allow_mixed_revisions)
        self.report = JobReport()
        self._file = file
        self._encoder = output.encoder(reader)
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
