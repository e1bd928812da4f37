"""`penstock worker` as a user starts it, kept running as systemd would keep it."""

import asyncio
import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from penstock.ops.bench.common.processes import log_events
from penstock.ops.chaos.fleet.faulty_engine import OUT_OF_MEMORY, PASSING, POISONED

_EVENT = re.compile(rb'"event": "(\w+)"')
_RESTART_S = 1.0
_LOOK_EVERY_S = 0.2


class WorkerCommand:
    """One supervisor and its members. All of it runs on the caller's event loop; `run` starts it again when it ends."""

    def __init__(
        self, folder: Path, seed: int, options: Sequence[str], environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """`folder` is the members' control folder and gets the log. `environment`: beside this process's."""
        self.folder = folder
        self.log_path = folder / "worker.log"
        self._environment = {**os.environ, **environment}
        self.exits: list[int] = []  # of supervisors that were not asked to end
        module = "penstock.ops.chaos.fleet.faulty_worker"
        self._command = (sys.executable, "-m", module, str(folder), str(seed), "worker", *options)
        self._process: subprocess.Popen[bytes] | None = None
        self._logs: list[subprocess.Popen[bytes]] = []
        self._counted: Counter[str] = Counter()  # events in the first `_counted_bytes` of the log, by name
        self._counted_bytes = 0

    @property
    def pid(self) -> int | None:
        """Process id of the supervisor; None while there is none."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    @property
    def members(self) -> list[int]:
        """Process ids of the members that run."""
        pid = self.pid
        try:
            return [] if pid is None else [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except FileNotFoundError:
            return []

    async def run(self) -> None:
        """Start the command, and start it again whenever it ends, until cancelled."""
        while True:
            self._start()
            while self.pid is not None:  # noqa: ASYNC110 — a process has no event to wait for
                await asyncio.sleep(_LOOK_EVERY_S)
            self.exits.append(self._reap())
            await asyncio.sleep(_RESTART_S)

    async def stop(self, timeout_s: float) -> int:
        """End it with SIGTERM. Returns its exit code; -9 if it took longer than `timeout_s`. After `run`."""
        if self._process is None:
            return 0
        self.signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(self._process.wait, timeout_s)
        for pid in (*self.members, self.pid):
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
        code = self._reap()
        for log in self._logs:
            await asyncio.to_thread(log.wait)  # members of a supervisor that was killed hold it until they end
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the supervisor."""
        if self._process is not None:
            self._process.send_signal(number)

    def limit_files(self, num_bytes: int) -> int:
        """Let members write no file beyond this size, as on a full disk. -1: any size. Returns how many it limits."""
        num_limited = 0
        for pid in self.members:
            with contextlib.suppress(ProcessLookupError):
                _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (num_bytes, most))
                num_limited += 1
        return num_limited

    def num_events(self, name: str) -> int:
        """How many events called so were logged so far. Reads what is new, as the log grows to a million lines."""
        if self.log_path.exists():
            with self.log_path.open("rb") as log:
                log.seek(self._counted_bytes)
                new = log.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._counted.update([found.decode() for found in _EVENT.findall(whole)])
            self._counted_bytes += len(whole)
        return self._counted[name]

    def num_killed(self) -> int:
        """How many members SIGKILL has ended, by the log of their supervisors."""
        return sum(event.get("signal") == signal.SIGKILL.name for event in self.events('"event": "member_exited"'))

    def failures_of_engines(self) -> dict[str, int]:
        """How many failures of engines were logged, by kind."""
        kinds = (POISONED, PASSING, OUT_OF_MEMORY)
        return {f"logged_{kind.replace(' ', '_')}": len(self.events(kind)) for kind in kinds}

    def events(self, part: str) -> list[dict[str, Any]]:
        """The events whose lines hold `part`."""
        return list(log_events(self.log_path, part)) if self.log_path.exists() else []

    def _start(self) -> None:
        """Start the command. Its log passes a pipe, because `limit_files` counts for files of the members alone."""
        with self.log_path.open("ab") as log:
            cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=log, process_group=0)
        self._logs.append(cat)
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=cat.stdin,
            stderr=cat.stdin,
            env=self._environment,
            process_group=0,
        )
        if cat.stdin is not None:
            cat.stdin.close()  # members hold it as long as they live

    def _reap(self) -> int:
        code = 0 if self._process is None else self._process.wait()
        self._process = None
        return code
