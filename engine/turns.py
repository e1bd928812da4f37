"""Turns on a device: of the processes that share it, one at a time runs batches there."""

import fcntl
import math
import mmap
import os
import struct
import tempfile
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import structlog

from penstock.engine.errors import LanesClosed

_OVERDUE_S = 10.0  # a process that keeps a turn for longer is suspended: batches of a shared device take milliseconds
_MET_FOR_S = 1.0  # for so long after a process has met another, it expects to meet it again
_MOST_HAND_OVER_S = 0.002
_WEIGHT = 1 / 16  # of one hand-over in their mean
_FIELDS = struct.Struct("=dd")  # moment at which the last turn was to end; mean seconds of a hand-over

log = structlog.get_logger("penstock.engine")


class DeviceTurns:
    """Takes turns on a device with the other processes of this user.

    Without turns CUDA runs the batches of several processes in slices of about 2 ms. A batch then takes a multiple of
    its time that depends on chance, and all of them end late.

    The turn is a lock on a file (flock), which the kernel takes from a process that ends. A process that waits for it
    holds the lock on a second file, the gate. So a process that gives the turn back and asks again comes behind the one
    that waits. Others wait at the gate; the kernel wakes them in the order in which they came.

    The device would be idle while the next process wakes up and launches its batch. So a turn ends earlier than its
    batch, by the mean seconds of these hand-overs, which lie in the file for all processes.

    One thread takes turns, and calls `launched`. Another gives them back.
    """

    def __init__(self, device: str | None = None) -> None:
        """`device`: a name that is the same in all processes, such as a GPU's UUID; None: no other process uses it."""
        self._turn, self._gate = _lock_files(device)
        self._shared = mmap.mmap(self._turn, _FIELDS.size)
        self._changed = threading.Condition()
        self._num_underway = 0  # batches in this process's turn
        self._met_at = -math.inf  # when another process was met last
        self._has_waited = False  # for the last turn
        self._wait: threading.Event | None = None  # of the thread that takes turns
        self._abandoned: threading.Event | None = None  # a wait that has no end yet, and whose turn is not wanted
        self._is_interrupted = False
        # A lock cannot be waited for with a time limit. The thread that waits may never come back.
        self._waits: SimpleQueue[threading.Event | None] = SimpleQueue()
        threading.Thread(target=self._serve_waits, name="device-turns", daemon=True).start()

    def take(self) -> None:
        """Wait for the turn, or join this process's own while no other process waits. Raises LanesClosed.

        After ten seconds the batch runs without a turn, in slices of time beside whatever the other process runs.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._num_underway or self._is_interrupted or not self._is_awaited())
            is_mine = self._num_underway or self._abandoned is not None or self._is_interrupted or self._try()
            if not is_mine:
                self._wait = threading.Event()
                self._waits.put(self._wait)
        self._has_waited = self._wait is not None
        if self._wait is not None:
            self._await(self._wait)
        with self._changed:
            self._num_underway += 1
        if self._is_interrupted:
            self.give_back()
            raise LanesClosed("the engine lanes were closed before this batch was computed.")

    def launched(self) -> None:
        """The batch of the last turn is on the device: measure the hand-over to it."""
        if self._has_waited:
            ended_at, mean_s = self._fields()
            hand_over_s = min(max(0.0, time.monotonic() - ended_at), _MOST_HAND_OVER_S)
            _FIELDS.pack_into(self._shared, 0, ended_at, mean_s + _WEIGHT * (hand_over_s - mean_s))

    def give_back_before(self, end: float) -> bool:
        """Give the turn back so that the next process's batch is launched at `end`. False: no process is expected.

        `end`: when a batch is predicted to end. With False, call `give_back` when it has ended.
        """
        now = time.monotonic()
        with self._changed:
            if self._num_underway > 1 or now > self._met_at + _MET_FOR_S or end == math.inf:
                return False
        moment = max(now, end - self._fields()[1])
        time.sleep(moment - now)
        self.give_back(moment)
        return True

    def give_back(self, moment: float | None = None) -> None:
        """A batch has ended, or will soon: with the last one the turn ends. `moment`: when it was to end, if not now."""
        with self._changed:
            self._num_underway -= 1
            if not self._num_underway:
                self._unlock(moment or time.monotonic())
            self._changed.notify()

    def interrupt(self) -> None:
        """End a wait for the turn: its `take` and later ones raise LanesClosed. Batches underway keep the turn."""
        with self._changed:
            self._is_interrupted = True
            self._changed.notify()
            if self._wait is not None and not self._wait.is_set():
                self._abandoned = self._wait
                self._wait.set()

    def close(self) -> None:
        """Release the files. Called when no batch is underway and `take` is not called any more."""
        self.interrupt()
        self._waits.put(None)

    def _try(self) -> bool:
        """Take the turn if it is free. Else this process may hold the gate from now on."""
        if not _try_lock(self._gate) or not _try_lock(self._turn):
            return False
        fcntl.flock(self._gate, fcntl.LOCK_UN)
        return True

    def _await(self, wait: threading.Event) -> None:
        is_over = wait.wait(_OVERDUE_S)
        with self._changed:
            self._wait, self._met_at = None, time.monotonic()
            if not is_over and not wait.is_set():
                self._abandoned = wait
                log.warning("turn_overdue", waited_s=_OVERDUE_S, consequence="batches share the device in time slices")

    def _serve_waits(self) -> None:
        """Wait for turns, one after the other, until `close`."""
        while (wait := self._waits.get()) is not None:
            fcntl.flock(self._gate, fcntl.LOCK_EX)
            fcntl.flock(self._turn, fcntl.LOCK_EX)
            fcntl.flock(self._gate, fcntl.LOCK_UN)
            with self._changed:
                if self._abandoned is wait:
                    self._abandoned = None
                    self._unlock(time.monotonic())
                wait.set()
        self._shared.close()
        os.close(self._turn)
        os.close(self._gate)

    def _is_awaited(self) -> bool:
        """Whether another process waits for the turn, which this one has."""
        if _try_lock(self._gate):
            fcntl.flock(self._gate, fcntl.LOCK_UN)
            return False
        self._met_at = time.monotonic()
        return True

    def _unlock(self, moment: float) -> None:
        _FIELDS.pack_into(self._shared, 0, moment, self._fields()[1])
        fcntl.flock(self._turn, fcntl.LOCK_UN)

    def _fields(self) -> tuple[float, float]:
        ended_at, mean_s = _FIELDS.unpack_from(self._shared)
        return ended_at, mean_s if 0 <= mean_s <= _MOST_HAND_OVER_S else 0.0


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_files(device: str | None) -> tuple[int, int]:
    """Descriptors of the turn's file and of the gate's. In memory, for this process alone, where none can be opened."""
    try:
        if device is not None:
            folder = _runtime_folder()
            return _open(folder / f"turn-{device}"), _open(folder / f"gate-{device}")
    except OSError as error:
        log.warning("turns_unavailable", error=repr(error), consequence="processes share the device in time slices")
    return _sized(os.memfd_create("turn")), os.memfd_create("gate")


def _open(path: Path) -> int:
    return _sized(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))


def _sized(descriptor: int) -> int:
    os.ftruncate(descriptor, _FIELDS.size)
    return descriptor


def _runtime_folder() -> Path:
    """The user's folder for locks and sockets. Raises OSError."""
    given = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(given, "penstock") if given else Path(tempfile.gettempdir(), f"penstock-{os.getuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    return folder
