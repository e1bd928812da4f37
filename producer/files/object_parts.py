"""A job's finished parts as objects beside its output: OUT.parts/part-000000-RUN and OUT.parts/manifest.json.

Any machine can continue the job, as nothing that it needs is on the disk of the one that began it. Stores neither
rename nor append nor lock, so that

- a part is an object of its own. Its name has the run that wrote it: no process ever replaces the part of another one;
- the manifest alone says which parts count. It is replaced only if it is still the one that this process wrote or read
  last (If-Match), in one step of the store. Of two processes that write one output, the first to finish a part
  continues, and the other ends with an error, also one that was taken for dead;
- the output is uploaded once, when all of it is joined in a temporary file. It is visible when it is whole, and its
  metadata name the job, which tells it from another object after a kill.
"""

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from penstock.producer.files.job_manifest import FileJob, Manifest
from penstock.producer.files.object_path import ObjectPath
from penstock.producer.files.part_directory import MANIFEST, parts_path
from penstock.producer.files.row_blocks import TableError


class ObjectParts:
    """The parts of one run, as `PartDirectory` has them on a disk. The unfinished part is a temporary file.

    The disk holds the joined rows and one part. Its files have no names: they end with the process, killed or not.
    """

    def __init__(self, target: ObjectPath, job: FileJob, *, restart: bool) -> None:
        """Continue the job whose parts the store holds, or begin it. Its first manifest shows that it can be written.

        Args:
            restart: leave the parts of earlier runs out.

        Raises:
            TableError: it is of another job, or the store denies access. FileNotFoundError: there is no such bucket.
        """
        self.path = parts_path(target)
        self._target = target
        self._store = target.bucket
        self._run = secrets.token_hex(4)
        self._manifest_key = ObjectPath(self.path, MANIFEST).key
        self._version: dict[str, str] | None = None
        self._joined, self._unfinished = _nameless_file(), _nameless_file()
        self._newest: IO[bytes] | None = None  # content of the newest part, if this run wrote it
        self.manifest = Manifest.new(job)
        try:
            kept = self._load(restart)
            if kept is not None and kept.parts:
                kept.check_job(job, self.path)
                self.manifest = kept
            elif kept != self.manifest:  # a process that writes nothing ends no other one
                self._save()
        except BaseException:
            self.close()
            raise

    def _load(self, restart: bool) -> Manifest | None:
        try:
            content, self._version = self._store.content(self._manifest_key)
        except FileNotFoundError:
            return None
        return None if restart else _parsed(content, ObjectPath(self.path, MANIFEST))

    @property
    def unfinished(self) -> Path:
        """The part that is being written."""
        return _path_of(self._unfinished)

    @property
    def joined(self) -> Path:
        """The output before it is uploaded."""
        return _path_of(self._joined)

    @property
    def is_published(self) -> bool:
        """Whether the output is the job's, and only the removal of the parts is missing."""
        return self.manifest.is_of(self._target)

    @property
    def parts(self) -> list[Path]:
        """The finished parts, in order."""
        return [ObjectPath(self.path, name) for name in self.manifest.names]

    @contextlib.contextmanager
    def local(self, part: Path) -> Iterator[Path]:
        """A finished part as a local file. What is mapped of it stays, and does not change."""
        if self._newest is not None and part.name == self.manifest.names[-1]:
            yield _path_of(self._newest)
            return
        with tempfile.TemporaryFile() as file, part.open("rb") as content:
            shutil.copyfileobj(content, file, 1 << 20)
            file.flush()
            yield _path_of(file)

    def add_part(self) -> None:
        """Upload `unfinished`, and save the manifest."""
        name = f"part-{len(self.manifest.parts):06}-{self._run}"
        self._store.upload(ObjectPath(self.path, name).key, self.unfinished, self._run)
        self.manifest.parts.append(self.unfinished.stat().st_size)
        self.manifest.names.append(name)
        self._save()
        if self._newest is not None:
            self._newest.close()
        self._newest, self._unfinished = self._unfinished, _nameless_file()

    def checked_parts(self) -> list[Path]:
        """`parts`. Raises TableError if one is missing or has another size."""
        found = {path.name: path.stat().st_size for path in self.path.below()}
        for part, size in zip(self.parts, self.manifest.parts, strict=True):
            if found.get(part.name) != size:
                raise TableError(f"{part} was removed or changed. Discard the other parts as well: --restart.")
        return self.parts

    def publish(self, *, joined: Path) -> None:
        """Upload the joined file as the output."""
        mark = secrets.randbits(60)
        self.manifest.output = [mark]
        self._save()
        self._store.upload(self._target.key, joined, str(mark))

    def remove(self) -> None:
        """Remove the job's objects, but not those of another process that has continued it.

        The manifest is removed first, or last, for the reasons of `PartDirectory`.
        """
        parts = [path.key for path in self.path.below() if path.name.startswith("part-")]
        if not self._is_owner():
            self._store.delete([key for key in parts if key.endswith(self._run)])
            return
        order = [[self._manifest_key], parts]
        for keys in reversed(order) if self.is_published else order:
            self._store.delete(keys)

    def _is_owner(self) -> bool:
        try:
            return self._store.content(self._manifest_key)[1] == self._version
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Release the temporary files."""
        for file in (self._joined, self._unfinished, self._newest):
            if file is not None:
                file.close()

    def _save(self) -> None:
        """Replace the manifest. Raises TableError if another process has."""
        version = self._store.replace(self._manifest_key, self.manifest.encoded(), self._version)
        if version is None:
            raise TableError(f"Another process writes {self._target}.")
        self._version = version


def _nameless_file() -> IO[bytes]:
    return tempfile.TemporaryFile()  # `close` closes it


def _path_of(file: IO[bytes]) -> Path:
    """A path of a file without a name, by which this process opens it again."""
    return Path(f"/proc/self/fd/{file.fileno()}")


def _parsed(content: bytes, path: Path) -> Manifest:
    manifest = Manifest.parsed(content, path)
    if len(manifest.names) != len(manifest.parts):
        raise TableError(f"{path} is not the manifest of a bulk job over objects. To begin anew give --restart.")
    return manifest


def kept_object_manifest(target: ObjectPath) -> Manifest | None:
    """The manifest of an earlier run; None if there is none, or it lists no part. Raises TableError."""
    path = ObjectPath(parts_path(target), MANIFEST)
    try:
        content, _ = target.bucket.content(path.key)
    except FileNotFoundError:
        return None
    manifest = _parsed(content, path)
    return manifest if manifest.parts else None
