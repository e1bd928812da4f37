"""Manifest of a bulk job: what it is, and which of its parts are finished."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from penstock.producer.files.durable import publish, write_synced
from penstock.producer.files.job_report import JobReport
from penstock.producer.files.row_blocks import TableError
from penstock.producer.files.standard_streams import STANDARD

T = TypeVar("T")

_VERSION = 1  # of the manifest, and of the rows and bounds of a part


def describe_job(
    *, inputs: Sequence[Path], texts: Sequence[str], task: str, options: dict[str, Any], model: str, extension: str
) -> dict[str, Any]:
    """The identity of a job, equal where it is continued: its inputs as they are on the disk, and the task for them."""
    return {
        "version": _VERSION,
        "inputs": [_input_stamp(path) for path in inputs],
        "columns": list(texts),
        "task": task,
        "options": options,
        "model": model,
        "format": extension,
    }


def stamp_of(path: Path) -> list[int] | None:
    """Size, time of the last change and inode of a file; None if it does not exist."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _input_stamp(path: Path) -> list[Any]:
    return ["-"] if path == STANDARD else [str(path.resolve()), *(stamp_of(path) or ())[:2]]


@dataclass(slots=True)
class Manifest:
    """State of a job. The file is replaced as a whole, so that a reader finds this state or the one before it."""

    job: dict[str, Any]
    revision: str | None = None  # of the model that answered first
    parts: list[int] = field(default_factory=list)  # bytes of each finished part
    report: JobReport = field(default_factory=JobReport)
    output: list[int] | None = None  # stamp of the joined file, before it gets its name

    @property
    def is_resumable(self) -> bool:
        """Whether a later run can read the input again; not of standard input."""
        return bool(self.job["inputs"] != [_input_stamp(STANDARD)])

    def save(self, path: Path) -> None:
        """Replace the file. Raises OSError."""
        data = {
            "job": self.job,
            "revision": self.revision,
            "parts": self.parts,
            "report": self.report.to_dict(),
            "output": self.output,
        }
        temporary = path.with_name(f"{path.name}.new")
        write_synced(temporary, json.dumps(data).encode())
        publish(temporary, path)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the file. Raises TableError if it is no manifest, and FileNotFoundError."""
        try:
            data = json.loads(path.read_bytes())
            manifest = cls(
                _checked(data["job"], dict),
                None if data["revision"] is None else _checked(data["revision"], str),
                [_checked(size, int) for size in _checked(data["parts"], list)],
                JobReport.from_dict(data["report"]),
                None if data["output"] is None else _checked(data["output"], list),
            )
            for stamp in manifest.job["inputs"]:
                _checked(_checked(stamp, list)[0], str)
            return manifest
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise TableError(f"{path} is not the manifest of a bulk job. To begin anew give --restart.") from error

    def is_of(self, target: Path) -> bool:
        """Whether a file is the output that the job has published."""
        return self.output is not None and self.output == stamp_of(target)

    def check_job(self, job: dict[str, Any], directory: Path) -> None:
        """Raise TableError, with the difference and the remedy, if the manifest is of another job."""
        for name, now in job.items():
            before = self.job.get(name)
            if before != now:
                raise TableError(
                    f"{directory} is of another job: {_difference(name, before, now)} It holds {self.report.rows:,} "
                    "finished rows. To discard them give --restart; to keep them write to another file."
                )


def _checked(value: Any, kind: type[T]) -> T:
    """The value. Raises TypeError for one of another type."""
    if not isinstance(value, kind):
        raise TypeError(f"{kind.__name__} expected")
    return value


def _difference(name: str, before: Any, now: Any) -> str:
    if name != "inputs" or not isinstance(before, list):
        return f"its {name} is {before!r}, and now it is {now!r}."
    paths, paths_now = [path for path, *_ in before], [path for path, *_ in now]
    if paths != paths_now:
        return f"its input is {_some(paths)}, and now it is {_some(paths_now)}."
    changed = next(path for (path, *stamp), (_, *other) in zip(before, now, strict=True) if stamp != other)
    return f"{changed} has changed since it began."


def _some(paths: Sequence[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1:,} more"
