"""Directory of a job's finished parts, beside its output: OUT.parts."""

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TypeVar

from penstock.producer.files.durable import publish
from penstock.producer.files.job_manifest import FileJob, Manifest, stamp_of
from penstock.producer.files.row_blocks import TableError

MANIFEST = "manifest.json"
_AnyPath = TypeVar("_AnyPath", bound=Path)


def parts_path(target: _AnyPath) -> _AnyPath:
    """The directory of an output's parts."""
    return target.with_name(f"{target.name}.parts")


def kept_manifest(target: Path) -> Manifest | None:
    """The manifest of an earlier run, without a lock; None if there is none. Raises TableError if it cannot be read."""
    path = parts_path(target) / MANIFEST
    try:
        return Manifest.load(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}.") from error


class PartDirectory:
    """An open directory, locked against other processes until `close` or the end of this one."""

    def __init__(self, target: Path, job: FileJob, *, restart: bool) -> None:
        """Create the directory, or continue the job whose parts it holds.

        Args:
            restart: discard the parts.

        Raises:
            TableError: another process has it, or it is of another job.
            OSError: it cannot be created or read.
        """
        self.path = parts_path(target)
        self._target = target
        self._manifest_path = self.path / MANIFEST
        self.path.mkdir(exist_ok=True)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.manifest = self._load(job, restart)
        except BlockingIOError as error:
            self.close()
            raise TableError(f"Another process writes {target}.") from error
        except BaseException:
            self.close()
            raise

    def _load(self, job: FileJob, restart: bool) -> Manifest:
        if restart:
            self._manifest_path.unlink(missing_ok=True)
        try:
            manifest = Manifest.load(self._manifest_path)
        except FileNotFoundError:
            return Manifest.new(job)
        manifest.check_job(job, self.path)
        return manifest

    @property
    def unfinished(self) -> Path:
        """The part that is being written."""
        return self.path / "part.new"

    @property
    def joined(self) -> Path:
        """The output before it gets its name."""
        return self.path / "joined.new"

    @property
    def is_published(self) -> bool:
        """Whether the output has its name, and only the removal of the parts is missing."""
        return self.manifest.is_of(self._target)

    @property
    def parts(self) -> list[Path]:
        """The finished parts, in order."""
        return [self._part(number) for number in range(len(self.manifest.parts))]

    def local(self, part: Path) -> contextlib.AbstractContextManager[Path]:
        """A finished part as a local file."""
        return contextlib.nullcontext(part)

    def add_part(self) -> None:
        """Finish `unfinished`, whose content is on the disk, and save the manifest."""
        part = self._part(len(self.manifest.parts))
        publish(self.unfinished, part)
        self.manifest.parts.append(part.stat().st_size)
        self.manifest.save(self._manifest_path)

    def checked_parts(self) -> list[Path]:
        """`parts`. Raises TableError if one is missing or has another size."""
        parts = self.parts
        for part, size in zip(parts, self.manifest.parts, strict=True):
            if not part.exists() or part.stat().st_size != size:
                raise TableError(f"{part} was removed or changed. Discard the other parts as well: --restart.")
        return parts

    def publish(self, *, joined: Path) -> None:
        """Give the joined file, whose content is on the disk, the name of the output."""
        self.manifest.output = stamp_of(joined)
        self.manifest.save(self._manifest_path)
        publish(joined, self._target)

    def remove(self) -> None:
        """Remove the job's files, and the directory if it holds no other.

        The manifest is removed first, so that no manifest lists a part that is gone. Once the output has its name, the
        manifest is removed last: without it the output cannot be told from another file of that name.
        """
        parts = [*sorted(self.path.glob("part-*")), self.unfinished, self.joined, self.path / f"{MANIFEST}.new"]
        for path in [*parts, self._manifest_path] if self.is_published else [self._manifest_path, *parts]:
            path.unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def _part(self, number: int) -> Path:
        return self.path / f"part-{number:06}"
