"""Writer of a table in parts, which a later run of the same job continues."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from penstock.producer.answer_stream import Result
from penstock.producer.errors import MixedRevisions, PenstockError
from penstock.producer.files.durable import give_up, sync
from penstock.producer.files.encoders import TableEncoder
from penstock.producer.files.file_job import TooManyErrors
from penstock.producer.files.job_report import ReplyTally
from penstock.producer.files.join_parts import JoinedFile
from penstock.producer.files.object_parts import ObjectParts
from penstock.producer.files.part_directory import PartDirectory
from penstock.producer.files.row_blocks import Block, TableError, cannot_write
from penstock.producer.one_revision import OneRevision
from penstock.producer.row_inputs import num_chars

# Bounds of a part, which a killed run loses. The output does not depend on them: a part ends with a block, and row
# groups are made of blocks.
PART_ROWS = 8192
PART_S = 2.0
_PART_CHARS = 16 << 20


class PartWriter:
    """An output table, made by `JobOutput`. A context manager.

    Finished parts are kept in OUT.parts, on the disk or in the output's store, whatever ends the process. A context
    that ends without an error gives the joined file the name of the output, and removes the parts. One that ends by
    `TooManyErrors` or `MixedRevisions` finishes its part.
    """

    def __init__(
        self,
        path: Path,
        directory: PartDirectory | ObjectParts,
        encoder: TableEncoder,
        *,
        overwrite: bool,
        allow_mixed_revisions: bool,
    ) -> None:
        self.path = path
        self.tally = ReplyTally()  # of the client's replies
        self.revision = OneRevision(directory.manifest.revision, allow_mixed=allow_mixed_revisions)  # of all runs
        self.report = directory.manifest.report  # of all rows that were written
        self.kept_rows = self.report.rows  # of finished parts
        self._may_have_parts = self.kept_rows > 0  # also while the first one is being saved: an interrupt may follow
        self.is_resumable = directory.manifest.is_resumable
        self._directory = directory
        self._encoder = encoder
        self._overwrite = overwrite
        self._joined = JoinedFile(directory.joined, encoder, directory.local)
        self._file: IO[bytes] | None = None  # the unfinished part
        self._rows = self._chars = 0  # of it
        self._begun = 0.0  # steady clock, in seconds

    def write(self, block: Block, results: Sequence[Result]) -> None:
        """Append the block's rows with one result each. Called in the order of the file. Raises TableError."""
        if len(results) != len(block.texts):
            raise ValueError(f"{len(results)} results for {len(block.texts)} rows. This is a bug.")
        self._directory.manifest.revision = self.revision.first
        try:
            if self._file is None:
                self._file = self._directory.unfinished.open("wb")
                self._begun = time.monotonic()
            self._file.write(self._encoder.encode(block, results))
            self.report.add(block, results)
            self._rows += len(results)
            self._chars += sum([num_chars(text) for text in block.texts if not isinstance(text, PenstockError)])
            is_old = time.monotonic() - self._begun >= PART_S
            if self._rows >= PART_ROWS or self._chars >= _PART_CHARS or is_old:
                self._finish_part(self._file)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
            elif isinstance(error, TooManyErrors | MixedRevisions) and self._file is not None and self.is_resumable:
                self._finish_part(self._file)  # it holds whole blocks
            elif not self._may_have_parts or not self.is_resumable:
                self._directory.remove()
        except OSError as problem:
            raise cannot_write(self.path, problem) from problem
        finally:
            self._joined.close()
            if self._file is not None:
                give_up(self._file)
            self._directory.close()

    def _finish(self) -> None:
        if self._file is not None:
            self._finish_part(self._file)
        if not self._directory.is_published:
            self._joined.join(self._directory.checked_parts(), self.report.vector_lengths)
            self._joined.finish()
            refuse_existing(self.path, self._overwrite)
            self._directory.publish(joined=self._directory.joined)
        self._directory.remove()

    def _finish_part(self, file: IO[bytes]) -> None:
        sync(file)
        file.close()
        self._file = None
        self._may_have_parts = True
        try:
            self._directory.add_part()
        except Exception:
            self._may_have_parts = self.kept_rows > 0
            raise
        self._rows = self._chars = 0
        self.kept_rows = self.report.rows
        self._joined.join(self._directory.parts, self.report.vector_lengths)


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raise TableError if the output exists and is not to be replaced. A directory never is."""
    if path.is_dir():
        raise TableError(f"{path} is a directory. Name the file to write.")
    if path.exists() and not overwrite:
        raise TableError(f"{path} exists already. Choose another name, or replace it with --overwrite.")
