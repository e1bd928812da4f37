"""Paths of objects in stores: `s3://bucket/key`, and of Google, Azure and Hugging Face."""

import glob
import io
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path, PosixPath
from typing import NoReturn, Self

from penstock.producer.files.object_reader import ObjectReader
from penstock.producer.files.object_store import Bucket, ObjectStat, ReadableStore, open_store
from penstock.producer.files.row_blocks import TableError

_RANGE_BYTES = 4 << 20  # of a request
SCHEMES = ("s3", "gs", "abfs", "hf")


class ObjectPath(PosixPath):
    """The path of an object, made by `file_path`. Its parts, name and suffix are those of a path.

    What is asked of the store raises TableError if the store denies it, and StoreError if it does not answer.
    """

    _listed: ObjectStat | None = None

    def __str__(self) -> str:
        return f"{self.parts[0]}//{'/'.join(self.parts[1:])}"

    def __fspath__(self) -> NoReturn:
        raise TypeError(f"{self} is no file of this machine. This is a bug.")

    @property
    def store(self) -> ReadableStore:
        """The bucket or container. Raises TableError if the library of its store is not installed."""
        return open_store(f"{self.parts[0]}//{self.parts[1]}")

    @property
    def bucket(self) -> Bucket:
        """`store`, to write to it. Raises TableError also for one that is read only."""
        if not isinstance(self.store, Bucket):
            raise TableError(f"{self}: hf:// is read only, as each write is a commit. Write a file, and upload it.")
        return self.store

    @property
    def key(self) -> str:
        """The object's name in its bucket."""
        return "/".join(self.parts[2:])

    def open(self, mode: str = "rb") -> io.BufferedReader:  # type: ignore[override]  # a job writes no object in pieces
        """Open the object to read bytes, in ranges. Raises FileNotFoundError."""
        return io.BufferedReader(ObjectReader(self.store, self.key, _RANGE_BYTES))

    def stat(self, *, follow_symlinks: bool = True) -> ObjectStat:  # type: ignore[override]  # what a store knows
        """Size and version, as they were when the path was listed. Raises FileNotFoundError."""
        return self._listed or self.store.stat(self.key)

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        """Whether the object exists."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Whether the object exists."""
        return self.exists()

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Whether there are objects below the path."""
        return next(self.below(), None) is not None

    def resolve(self, strict: bool = False) -> Self:
        """The path itself."""
        return self

    def absolute(self) -> Self:
        """The path itself."""
        return self

    def mark(self) -> list[int]:
        """The mark of an output, if a job has written the object."""
        mark = self.bucket.mark_of(self.key)
        return [int(mark)] if mark.isdecimal() else []

    def below(self) -> Iterator["ObjectPath"]:
        """The objects below the path, at any depth."""
        for key, stat in self.store.below(self.key):
            path = ObjectPath(*self.parts[:2], key)
            path._listed = stat
            yield path

    def glob(self, pattern: str) -> Iterator["ObjectPath"]:  # type: ignore[override]  # no options
        """The objects below the path that a pattern of `*`, `?` and `**` matches."""
        names = pattern.split("/")
        root = self.joinpath(*takewhile(lambda name: not glob.has_magic(name), names))
        regex = "/".join(_PLACEHOLDER.sub(_as_regex, name) for name in names)
        matches = re.compile(regex.replace(f"{_ANY_FOLDERS}/", _ANY_FOLDERS))
        return (path for path in root.below() if matches.fullmatch("/".join(path.parts[len(self.parts) :])))


_ANY_FOLDERS = "(?:[^/]+/)*"
_PLACEHOLDER = re.compile(r"\*\*|.", re.DOTALL)


def _as_regex(found: re.Match[str]) -> str:
    return {"**": _ANY_FOLDERS, "*": "[^/]*", "?": "[^/]"}.get(found[0]) or re.escape(found[0])


def file_path(given: str) -> Path:
    """The path that a command line names: of an object if it begins with one of `SCHEMES`.

    Raises:
        TableError: a URL without a bucket or a key, with empty folders, or with a password.
    """
    scheme, is_url, rest = given.partition("://")
    if not is_url or scheme not in SCHEMES:
        return Path(given)
    first = rest.partition("/")[0]
    if ":" in first or ("@" in first and scheme != "abfs"):
        raise TableError(f"The {scheme}:// URL holds credentials. Give them in environment variables.")
    path = ObjectPath(f"{scheme}:", rest)
    if str(path) != given.rstrip("/") or ".." in path.parts or len(path.parts) < 3:
        raise TableError(f"{given} is not the URL of an object: {scheme}://bucket/key was expected.")
    return path
