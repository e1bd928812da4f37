"""Processes that never outlive this one, even if it is killed with SIGKILL."""

import os
import subprocess
from types import TracebackType
from typing import Self


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
