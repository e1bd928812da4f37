"""Files and directories that their owner alone may read. What a cache holds tells of what was asked."""

import os
import stat
from pathlib import Path

_FILE_MODE, _DIRECTORY_MODE = 0o600, 0o700


def make_private_file(path: str) -> None:
    """Make an empty file, whatever the umask; one that is there stays as it is.

    SQLite gives the files beside it (-wal, -shm, -journal) the mode of the file. Raises OSError.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _FILE_MODE)
    except FileExistsError:
        return
    try:
        os.fchmod(file, _FILE_MODE)
    finally:
        os.close(file)


def make_private_directory(path: Path) -> None:
    """Make a directory and those above it, whatever the umask; those that are there stay as they are.

    Raises OSError.
    """
    if path.is_dir():
        return
    make_private_directory(path.parent)
    try:
        path.mkdir(_DIRECTORY_MODE)
    except FileExistsError:
        if not path.is_dir():
            raise
    else:
        path.chmod(_DIRECTORY_MODE)


def check_regular(path: str) -> None:
    """Raise OSError if there is something else than a regular file, or a link to nothing: a FIFO may open never."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if os.path.islink(path):
            raise OSError(f"{path} links to a file that is not there") from None
        return
    if not stat.S_ISREG(mode):
        raise OSError(f"{path} is not a regular file")
