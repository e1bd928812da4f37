"""Client processes, each with a real Client, that offer one load after another together."""

import contextlib
import dataclasses
import json
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from penstock.ops.bench.common.processes import ProcessFailed, module_command, start, tail
from penstock.ops.bench.load.call_times import CallTimes
from penstock.ops.bench.load.client_process import ClientSpec
from penstock.ops.bench.load.loads import Load

_POLL_S = 0.02
_LEAD_S = 0.2  # from the order to start until the start
_CONNECT_TIMEOUT_S = 150.0
_ANSWER_SLACK_S = 20.0  # beyond the timeout of its calls, until a client counts as stuck


@dataclass(frozen=True, slots=True)
class Offered:
    """Measurements of a load by all clients."""

    calls: CallTimes
    failures: dict[str, int]  # kind of error -> sequences
    poison: dict[str, int]  # "answered" or the kind of error -> texts that were to fail
    lag_p99_ms: float  # of the client that sent latest, open loop


class ClientFleet:
    """`num_clients` processes. A context manager; they end with it."""

    def __init__(
        self,
        num_clients: int,
        bootstrap_servers: str,
        served_name: str,
        model: Path | None,
        folder: Path,
        **client: Any,
    ) -> None:
        """`client`: further fields of ClientSpec."""
        self._folder, self._log = folder, folder / "clients.log"
        checkpoint = None if model is None else str(model)
        self._specs = [
            ClientSpec(bootstrap_servers, served_name, checkpoint, str(folder), n, num_clients, **client)
            for n in range(num_clients)
        ]
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        for spec in self._specs:
            command = module_command("load.client_process", dataclasses.asdict(spec))
            self._processes.append(start(command, self._log, takes_input=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.close()

    def watched(self) -> dict[str, int]:
        """Label -> process id."""
        return {f"client {index}": process.pid for index, process in enumerate(self._processes)}

    def begin(self, load: Load) -> float:
        """Connect every client and start the load; returns the time of its start (perf_counter)."""
        self._write(json.dumps(dataclasses.asdict(load)))
        self._wait_for("ready", _CONNECT_TIMEOUT_S)
        start = time.perf_counter() + _LEAD_S
        self._write(repr(start))
        return start

    def collect(self, load: Load, start: float) -> Offered:
        """Wait for the load's end and for its last answers."""
        left_s = start + load.span_s - time.perf_counter()
        done = self._wait_for("done", left_s + load.timeout_s + _ANSWER_SLACK_S)
        failures, poison = Counter[str](), Counter[str]()
        for found in done:
            failures.update(found["failures"])
            poison.update(found["poison"])
        calls = CallTimes.read([self._folder / f"calls-{spec.number}.npy" for spec in self._specs])
        return Offered(calls, dict(failures), dict(poison), max(found["lag_p99_ms"] for found in done))

    def _write(self, line: str) -> None:
        for process in self._processes:
            if process.stdin is None:
                raise RuntimeError("A client has no standard input. This is a bug.")
            try:
                process.stdin.write(line + "\n")
                process.stdin.flush()
            except BrokenPipeError as error:
                raise ProcessFailed(f"A client ended.\n{tail(self._log)}") from error

    def _wait_for(self, step: str, timeout_s: float) -> list[dict[str, Any]]:
        """The content of each client's file of this step, which is removed."""
        paths = [self._folder / f"{step}-{spec.number}" for spec in self._specs]
        ends = time.monotonic() + timeout_s
        while not all(path.exists() for path in paths):
            if any(process.poll() is not None for process in self._processes):
                raise ProcessFailed(f"A client ended.\n{tail(self._log)}")
            if time.monotonic() > ends:
                raise ProcessFailed(f"A client was not {step} after {timeout_s:.0f} s.\n{tail(self._log)}")
            time.sleep(_POLL_S)
        return [_take(path) for path in paths]


def _take(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    return content
