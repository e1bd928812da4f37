"""The members under test: `penstock worker` as a user starts it, in processes of its own."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.ops.bench.common.processes import ProcessFailed, descendants, log_events, start, stop, tail
from penstock.ops.bench.load.load_bench import LoadBench, open_clients
from penstock.ops.kafka import KafkaBroker

# The installed command may be missing where the code runs from a checkout, as on a borrowed machine.
PENSTOCK = (sys.executable, "-c", "from penstock.ops.cli.main import main; main()")
READY_TIMEOUT_S = 240.0
_POLL_S = 0.1
_QUIET_S = 3.0  # without a further member, where neither the caller nor a supervisor tells their number
_SETTLED_S = 0.5  # without a further member, where one does
_STOP_TIMEOUT_S = 60.0


Member = tuple[int, int | None]  # number of its command, and its process id where log lines carry one


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """One or more `penstock worker` commands of one consumer group."""

    model: str  # checkpoint, or "null"
    arguments: Sequence[str] = ()  # further ones of the command, such as --processes 3
    commands: int = 1
    members: int | None = None  # in all; None: as many as there are once no further one begins
    environment: Mapping[str, str] = field(default_factory=dict)
    program: Sequence[str] = PENSTOCK  # the command itself, which may have another engine than the product's


class WorkerFleet:
    """A context manager: the commands run within it. Their logs stay."""

    def __init__(self, spec: FleetSpec, served_name: str, bootstrap_servers: str, folder: Path) -> None:
        self._spec = spec
        self._command = [*spec.program, "worker", "--model", spec.model, "--served-name", served_name]
        self._command += ["--bootstrap-servers", bootstrap_servers, *spec.arguments]
        self._logs = [folder / f"worker-{index}.jsonl" for index in range(spec.commands)]
        self._processes: list[subprocess.Popen[str]] = []

    @property
    def pids(self) -> list[int]:
        """Process ids of the commands."""
        return [process.pid for process in self._processes]

    @property
    def command(self) -> list[str]:
        """As a user types it, but for the broker's address."""
        return ["penstock", "worker", "--model", Path(self._spec.model).name, *self._spec.arguments]

    def __enter__(self) -> Self:
        environment = {"PENSTOCK_LOG_FORMAT": "json", **self._spec.environment}
        for path in self._logs:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._processes.append(start(self._command, path, environment=environment))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_until_ready(self, timeout_s: float) -> float:
        """Wait until every member has joined the group, and those that stand by have loaded; returns the seconds.

        Raises:
            ProcessFailed: a command ended, or time is up.
        """
        begun = changed = time.monotonic()
        joined: frozenset[Member] = frozenset()
        while True:
            starting, now_joined = self._members_of("worker_starting"), self._members_of("partitions_assigned")
            now = time.monotonic()
            if now_joined != joined:
                joined, changed = now_joined, now
            told = self._spec.members or sum(event["members"] for event in self.events("supervisor_starting"))
            expected = told or max(len(starting), self._spec.commands)
            quiet_s = _SETTLED_S if told else _QUIET_S
            if len(joined) >= expected and self._has_standbys() and now - changed > quiet_s:
                return changed - begun
            for process in self._processes:
                if process.poll() is not None:
                    raise ProcessFailed(f"The worker ended with exit code {process.returncode}.\n{self.log_tail()}")
            if now - begun > timeout_s:
                raise ProcessFailed(f"{len(joined)} members had joined after {timeout_s:.0f} s.\n{self.log_tail()}")
            time.sleep(_POLL_S)

    def _has_standbys(self) -> bool:
        """Whether every member that is to stand by has loaded, or was given up."""
        expected: int = sum(event.get("standbys", 0) for event in self.events("supervisor_starting"))
        found = [*self.events("standby_ready"), *self.events("standby_given_up")]
        return len(found) >= expected

    def members(self) -> list[int]:
        """Process ids of the members that are alive: processes that logged to be ready, or the commands themselves."""
        own = [process.pid for process in self._processes if process.poll() is None]
        below = {pid for command in own for pid in descendants(command)}
        said = {pid for _, pid in self._members_of("worker_ready") if pid is not None}
        return sorted(said & (below | set(own))) or own

    @property
    def is_supervised(self) -> bool:
        """Whether members that end are started again."""
        return any(True for _ in self.events("supervisor_starting"))

    def wait_for_members(self, count: int, timeout_s: float) -> bool:
        """Wait until that number of members is alive; False if they are not in time."""
        ends = time.monotonic() + timeout_s
        while len(self.members()) < count:
            if time.monotonic() > ends:
                return False
            time.sleep(_POLL_S)
        return True

    def watched(self) -> dict[str, int]:
        """Every process of the commands, by label: members, and what supervises or helps them."""
        members = self.members()
        everything = [pid for process in self._processes for pid in (process.pid, *descendants(process.pid))]
        others = [pid for pid in everything if pid not in members]
        labels = {f"member {index}": pid for index, pid in enumerate(members)}
        return labels | {f"supervisor {index}": pid for index, pid in enumerate(others)}

    def members_of_last_device(self) -> list[int]:
        """Process ids of the members on the device that a supervisor named last; empty without a supervisor."""
        device_of = {event["member_pid"]: event["device"] for event in self.events("member_started")}
        alive = [pid for pid in self.members() if pid in device_of]
        return [pid for pid in alive if device_of[pid] == max(map(str, (device_of[one] for one in alive)))]

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to every command: to its supervisor, where it has several members."""
        for process in self._processes:
            process.send_signal(number)

    def stop(self) -> tuple[float, list[int]]:
        """Send SIGTERM and wait; returns seconds and exit codes. What is left after a minute is killed."""
        begun = time.monotonic()
        below = [pid for command in self.pids for pid in descendants(command)]
        codes, stopped_s = stop(self._processes, _STOP_TIMEOUT_S), time.monotonic() - begun
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._processes = []
        return stopped_s, codes

    def events(self, name: str) -> Iterator[dict[str, Any]]:
        """Log events of all members so far."""
        for number, path in enumerate(self._logs):
            found = log_events(path, f'"{name}"')
            yield from ({**event, "command": number} for event in found if event.get("event") == name)

    def log_tail(self) -> str:
        """The last lines of the logs, for an error message."""
        return tail(*self._logs)

    def _members_of(self, name: str) -> frozenset[Member]:
        return frozenset((event["command"], event.get("pid")) for event in self.events(name))


@contextlib.contextmanager
def open_workers(
    broker: KafkaBroker, folder: Path, name: str, spec: FleetSpec, model: Path | None, **client: Any
) -> Iterator[LoadBench]:
    """Workers as a user starts them, and one client process for them."""
    with WorkerFleet(spec, name, broker.bootstrap_servers, folder / name) as workers:
        workers.wait_until_ready(READY_TIMEOUT_S)
        with open_clients(broker, folder, name, workers.watched, model, **client) as bench:
            yield bench
