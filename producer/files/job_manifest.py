"""Manifest of a bulk job: what it is, and which of its parts are finished."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import TypeAdapter

from penstock.producer.files.durable import publish, write_synced
from penstock.producer.files.job_report import JobReport
from penstock.producer.files.object_path import ObjectPath
from penstock.producer.files.row_blocks import TableError
from penstock.producer.files.standard_streams import STANDARD
from penstock.producer.wire.messages import NO_OPTIONS, Options

_VERSION = 1  # of the manifest, and of the rows and bounds of a part


class InputFile(NamedTuple):
    """An input as it is on the disk. Standard input, and a file that is missing, have neither size nor time."""

    path: str
    size_bytes: int = 0
    changed_ns: int = 0


@dataclass(frozen=True, slots=True)
class FileJob:
    """The identity of a job, equal where it is continued: its inputs, and the task for them."""

    inputs: list[InputFile]
    columns: list[str]
    task: str
    options: dict[str, Any]  # those that are not the defaults, as JSON is read again
    model: str
    format: str  # of the output
    version: int = _VERSION
    tables: dict[str, int] = field(default_factory=dict)  # of Delta and Iceberg among the inputs: versions by path

    @classmethod
    def of(
        cls,
        inputs: Sequence[Path],
        columns: Sequence[str],
        task: str,
        options: Options,
        model: str,
        extension: str,
        tables: Mapping[str, int],
    ) -> Self:
        """The job of these arguments now."""
        defaults = NO_OPTIONS._asdict()
        given = {name: value for name, value in options._asdict().items() if value != defaults[name]}
        stamps = [_input_file(path) for path in inputs]
        options_given = json.loads(json.dumps(given))
        return cls(stamps, list(columns), task, options_given, model, extension, tables=dict(tables))


def stamp_of(path: Path) -> list[int] | None:
    """Size, time of the last change and inode of a file; None if it does not exist."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _input_file(path: Path) -> InputFile:
    return InputFile("-") if path == STANDARD else InputFile(str(path.resolve()), *(stamp_of(path) or ())[:2])


@dataclass(slots=True)
class Manifest:
    """State of a job. The file is replaced as a whole, so that a reader finds this state or the one before it."""

    job: FileJob
    revision: str | None  # of the model that answered first
    parts: list[int]  # bytes of each finished part
    report: JobReport
    output: list[int] | None  # stamp of the joined file, before it gets its name; mark of an object
    names: list[str] = field(default_factory=list)  # of parts that are objects

    @classmethod
    def new(cls, job: FileJob) -> Self:
        """The state of a job that has not begun."""
        return cls(job, None, [], JobReport(), None)

    @property
    def is_resumable(self) -> bool:
        """Whether a later run can read the input again; not of standard input."""
        return self.job.inputs != [_input_file(STANDARD)]

    def save(self, path: Path) -> None:
        """Replace the file. Raises OSError."""
        temporary = path.with_name(f"{path.name}.new")
        write_synced(temporary, self.encoded())
        publish(temporary, path)

    def encoded(self) -> bytes:
        """The content of the file."""
        return json.dumps(_FORM.dump_python(self, mode="json")).encode()

    @staticmethod
    def load(path: Path) -> "Manifest":
        """Read the file. Raises TableError if it is no manifest, and FileNotFoundError."""
        return Manifest.parsed(path.read_bytes(), path)

    @staticmethod
    def parsed(content: bytes, path: Path) -> "Manifest":
        """The manifest of a file's content. Raises TableError if it is none."""
        try:
            return _FORM.validate_python(json.loads(content))
        except (ValueError, RecursionError) as error:
            raise TableError(f"{path} is not the manifest of a bulk job. To begin anew give --restart.") from error

    def is_of(self, target: Path) -> bool:
        """Whether a file is the output that the job has published."""
        if self.output is None:
            return False
        return self.output == (target.mark() if isinstance(target, ObjectPath) else stamp_of(target))

    def check_job(self, job: FileJob, directory: Path) -> None:
        """Raise TableError, with the difference and the remedy, if the manifest is of another job."""
        for name in [one.name for one in fields(job)]:
            before, now = getattr(self.job, name), getattr(job, name)
            if before != now:
                raise TableError(
                    f"{directory} is of another job: {_difference(name, before, now)} It holds {self.report.rows:,} "
                    "finished rows. To discard them give --restart; to keep them write to another file."
                )


_FORM = TypeAdapter(Manifest)  # pydantic's own JSON has no surrogates, and so no names of files that are not UTF-8


def _difference(name: str, before: Any, now: Any) -> str:
    if name != "inputs":
        return f"its {name} is {before!r}, and now it is {now!r}."
    paths, paths_now = [one.path for one in before], [one.path for one in now]
    if paths != paths_now:
        return f"its input is {_some(paths)}, and now it is {_some(paths_now)}."
    changed = next(one.path for one, other in zip(before, now, strict=True) if one != other)
    return f"{changed} has changed since it began."


def _some(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1:,} more"
