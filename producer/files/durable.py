"""Files that are on the disk when a call returns."""

import contextlib
import os
from pathlib import Path
from typing import IO


def sync(file: IO[bytes]) -> None:
    """Write a file's content to the disk."""
    file.flush()
    os.fsync(file.fileno())


def give_up(file: IO[bytes]) -> None:
    """Close a file whose content is not needed, without an error if its rest cannot be written, as on a full disk."""
    with contextlib.suppress(OSError):
        file.close()


def write_synced(path: Path, content: bytes) -> None:
    """Write a whole file to the disk."""
    with path.open("wb") as file:
        file.write(content)
        sync(file)


def publish(temporary: Path, path: Path) -> None:
    """Give a file, whose content is on the disk, its final name, on the disk as well."""
    os.replace(temporary, path)
    number = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
