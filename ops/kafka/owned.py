"""Things that end with this process, even if it is killed with SIGKILL: processes, and folders at the next start."""

import contextlib
import fcntl
import os
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path
from types import TracebackType
from typing import Self

_LOCK = ".owner"  # in each folder. The kernel releases its lock when the owner ends, however it ends


class StartGate:
    """Holds a new process back until its guard is there. A context manager, around the start:

        with StartGate() as gate:
            process = subprocess.Popen(gate.held("program", "argument"), stdin=gate.stdin)
            guard = gate.guard(process.pid)

    If this process ends in between, the program is not run. Its own standard input is empty.
    """

    def __enter__(self) -> Self:
        self.stdin, self._opening = os.pipe()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.stdin)
        os.close(self._opening)

    def held(self, *command: str) -> list[str]:
        """The command behind a shell that waits for the gate, and then becomes the program, with the same pid."""
        return ["/bin/sh", "-c", 'read -r _ && exec "$0" "$@" </dev/null', *command]

    def guard(self, pid: int) -> subprocess.Popen[bytes]:
        """Start a guard, which kills a process when this one ends; then let the process run.

        The caller kills and reaps the guard before it reaps the process: another process may get the same pid.
        """
        # `read` ends when the kernel closes the pipe's only writing end with this process. PR_SET_PDEATHSIG would
        # fire too early: when the thread that started the process ends.
        guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; kill -9 "$0"', str(pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )
        os.write(self._opening, b"\n")
        return guard


class OwnedFolder:
    """A temporary folder, until `remove`, or this process's end. As a context manager it removes itself.

    Making one removes the folders of the same prefix whose owners have been killed.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        """`prefix`: of the folder's name; distinct for each use. `parent`: None: the system's temporary folder."""
        parent = parent or Path(tempfile.gettempdir())
        _remove_abandoned(parent, prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._finalizer = weakref.finalize(self, _remove, self.path, _locked(self.path))

    def remove(self) -> None:
        """Remove the folder and its contents. May be called twice."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def _locked(folder: Path) -> int:
    """A descriptor that holds the folder's lock. The file is locked before it has its name, so no one finds it free."""
    unnamed = folder / f"{_LOCK}.new"
    lock = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    unnamed.rename(folder / _LOCK)
    return lock


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
        # OSError: the owner lives (BlockingIOError), or the folder has no lock yet, or another process removes it now.
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.getuid():  # of other users' folders nothing is followed
                _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    """Raises OSError where the folder has an owner."""
    lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
