"""A server as a child process that never outlives this one, and what its log says of a failure."""

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from penstock.ops.kafka.errors import BrokerFailed
from penstock.ops.kafka.owned import StartGate

_ERROR = re.compile("^Caused by:|^Exception in| ERROR | FATAL: ")
_MAX_LINES, _TAIL_BYTES = 20, 3000  # of a log that are shown


class GuardedProcess:
    """A process with a guard that kills it if this process dies, even by SIGKILL. Its output goes to the end of a log.

    Both have their own process groups, so that Ctrl-C in the terminal reaches only this process.
    """

    def __init__(self, command: Sequence[str], log_path: Path, *, user: int | None = None) -> None:
        """Start it. `user`: the id of another user to run as, which only root may give."""
        self._log_path = log_path
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        with log_path.open("ab") as log, StartGate() as gate:
            self._process = subprocess.Popen(
                gate.held(*command),
                stdin=gate.stdin,
                stdout=log,
                stderr=log,
                process_group=0,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
            self._guard: subprocess.Popen[bytes] | None = gate.guard(self._process.pid)

    @property
    def pid(self) -> int | None:
        """Its process id; None once it has ended."""
        return self._process.pid if self._process.poll() is None else None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def stop(self, timeout_s: float, number: signal.Signals = signal.SIGTERM) -> None:
        """End it by a signal, and by SIGKILL if it takes longer than this."""
        self.send(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """Kill and reap it. The guard first: it could kill another process that reuses the pid. May be called twice."""
        for process in (self._guard, self._process):
            if process is not None:
                process.send_signal(signal.SIGKILL)
                process.wait()
                if process.stdin is not None:
                    process.stdin.close()
        self._guard = None

    def wait_until(self, is_ready: Callable[[], bool], name: str, timeout_s: float) -> None:
        """Wait until the server is ready. Raises BrokerFailed with what it logged if it ends, or takes longer."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(0.05)
                raise BrokerFailed(f"{name} ended with exit code {code} while starting:\n{self.failure()}")
            if time.monotonic() > deadline:
                raise BrokerFailed(f"{name} was not ready after {timeout_s:.0f} s:\n{self.failure()}")

    def failure(self) -> str:
        """The errors that the process has logged since its start; see `logged_failure`."""
        return logged_failure(self._log_path, self._log_start)


def logged_failure(log_path: Path, start: int) -> str:
    """The errors in a log from a byte on, and their causes. Its last lines if there are none.

    A server that fails logs hundreds of lines on its way down after the error, and its settings before.
    """
    log = log_path.read_bytes()[start:].decode(errors="replace")
    errors = [line for line in log.splitlines() if _ERROR.search(line)]
    return "\n".join(list(dict.fromkeys(errors))[:_MAX_LINES]) or log[-_TAIL_BYTES:]
