"""Turns on a device: the processes that share it run one batch at a time there, first come, first served."""

import contextlib
import fcntl
import math
import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import structlog

_FIELDS = struct.Struct("=ddq")  # free_at, shift_s, owner: see DeviceTurns
_MOST_AHEAD_S = 10.0  # a device that is reserved for longer has an invalid file
_LOCK_TRIES, _LOCK_PAUSE_S = 100, 5e-5  # a process that holds the lock for longer than microseconds is suspended
_LEAD_SHARE = 1 / 8  # of a batch's seconds, by which it may begin before the batch ahead of it has ended
_WEIGHT = 1 / 16  # of one wake-up in their mean lateness

log = structlog.get_logger("penstock.engine")


@dataclass(frozen=True, slots=True)
class Turn:
    """A batch's time on the device."""

    begin: float  # monotonic seconds; moves with `shift_s`
    device_s: float  # predicted
    shift_s: float  # the file's, when the turn was reserved
    is_next: bool  # nothing of another process is ahead


class DeviceTurns:
    """Reserves a device's time for batches of this process, among those of this user.

    Without turns CUDA runs the batches of several processes in slices of about 2 ms. A batch then takes a multiple of
    its time that depends on the others, and each slice costs a change of contexts.

    A file that processes map says when the device will be free (`free_at`). A batch takes the time from then on, for its
    predicted seconds, and is launched when that time has come. Batches that end earlier or later move the turns behind
    them (`shift_s`). A process does not wait behind its own batches (`owner`), which its stream keeps in order.

    No process holds anything: the turn of one that has ended or is suspended passes. One thread reserves and waits;
    another may settle.
    """

    def __init__(self, device: str | None = None) -> None:
        """`device`: a name that is the same in all processes, such as a GPU's UUID; None: no other process uses it."""
        self._file = _file_of(device)
        self._shared = mmap.mmap(self._file, _FIELDS.size)
        self._threads = threading.Lock()
        self._late_s = 0.0  # mean lateness of wake-ups

    def reserve(self, device_s: float) -> Turn:
        """Take the device's next free time, for a batch that is predicted to need so much of it."""
        with self._locked():
            now = time.monotonic()
            free_at, shift_s, owner = self._read()
            is_free = not now < free_at < now + _MOST_AHEAD_S
            begin = now if is_free else free_at
            _FIELDS.pack_into(self._shared, 0, begin + device_s, shift_s, os.getpid())
        return Turn(begin, device_s, shift_s, is_free or owner == os.getpid())

    def wait(self, turn: Turn) -> None:
        """Wait until the batch is to be launched. A wake-up is late, so the wait ends earlier by its mean lateness."""
        if turn.is_next:
            return
        lead_s = min(self._late_s, _LEAD_SHARE * turn.device_s)
        while (left_s := self._begin(turn) - lead_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _MOST_AHEAD_S))
            self._late_s += _WEIGHT * (max(0.0, time.monotonic() - self._begin(turn) + lead_s) - self._late_s)

    def settle(self, turn: Turn, end: float) -> None:
        """The device has finished the batch at `end`: move the turns behind it."""
        with self._locked():
            free_at, shift_s, owner = self._read()
            if free_at > time.monotonic():
                late_s = end - self._begin(turn) - turn.device_s
                _FIELDS.pack_into(self._shared, 0, free_at + late_s, shift_s + late_s, owner)

    def close(self) -> None:
        """Release the file."""
        self._shared.close()
        os.close(self._file)

    def _begin(self, turn: Turn) -> float:
        return turn.begin + self._read()[1] - turn.shift_s

    def _read(self) -> tuple[float, float, int]:
        free_at, shift_s, owner = _FIELDS.unpack_from(self._shared)
        return free_at, shift_s if math.isfinite(shift_s) else 0.0, owner

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other threads and processes out. A process that is suspended meanwhile is passed after some ms."""
        with self._threads:
            for _ in range(_LOCK_TRIES):
                with contextlib.suppress(BlockingIOError):
                    fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                time.sleep(_LOCK_PAUSE_S)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)


def _file_of(device: str | None) -> int:
    """A descriptor of the device's file; of one in memory, for this process alone, if it cannot be opened."""
    file = None
    try:
        if device is not None:
            file = os.open(_runtime_folder() / f"device-{device}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        log.warning("turns_unavailable", error=repr(error), consequence="processes share the device in time slices")
    if file is None:
        file = os.memfd_create("device")
    os.ftruncate(file, _FIELDS.size)
    return file


def _runtime_folder() -> Path:
    """The user's folder for files that processes share while they run. Raises OSError."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(given, "penstock") if given else Path(tempfile.gettempdir(), f"penstock-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder
