"""The other processes of a benchmark: started as modules of ops.bench, watched through /proc."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_STOP_TIMEOUT_S = 30.0
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessFailed(Exception):
    """A process of the benchmark ended with an error. The message holds the end of its log."""


def cpu_s(pid: int) -> tuple[float, float]:
    """Processor seconds of a process since it began, all threads: (user, system). Resolution: 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return int(fields[11]) / _CLOCK_TICKS, int(fields[12]) / _CLOCK_TICKS


def rss_bytes(pid: int) -> int:
    """Resident memory of a process now."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * _PAGE_BYTES


def descendants(pid: int) -> list[int]:
    """Every process below `pid` that is alive, in the order of their ids."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (parent := _parent(int(entry))) is not None:
            children.setdefault(parent, []).append(int(entry))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return sorted(found)


def read_cpu_s(watched: Mapping[str, int]) -> dict[str, float]:
    """Processor seconds of each process that is alive, by its label."""
    found = {}
    for label, pid in watched.items():
        try:
            found[label] = sum(cpu_s(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def cores_used(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Cores that each process kept busy between two readings; those that ended, or began, in between are left out."""
    return {label: (after[label] - used_s) / seconds for label, used_s in before.items() if label in after}


def _parent(pid: int) -> int | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[1])


class Service:
    """A process that serves until told to stop: `python -m penstock.ops.bench.<module> <spec as JSON>`."""

    def __init__(self, module: str, spec: Mapping[str, Any], log: Path) -> None:
        self._module = module
        self._spec = spec
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("Service.pid outside its context. This is a bug.")
        return self._process.pid

    def __enter__(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                _command(self._module, self._spec), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        if process is None:
            raise RuntimeError("Service left without having been entered. This is a bug.")
        ended_early = process.poll()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if ended_early is not None:
            raise ProcessFailed(f"{self._module} ended with exit status {ended_early}.\n{_tail(self._log)}")


def run_once(module: str, spec: Mapping[str, Any], log: Path, timeout_s: float = 300.0) -> dict[str, Any]:
    """Run a module to its end; returns the JSON object that it printed last.

    Raises:
        ProcessFailed: it failed, or took longer than `timeout_s`.
    """
    with log.open("ab") as errors:
        try:
            done = subprocess.run(
                _command(module, spec),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired as error:
            raise ProcessFailed(f"{module} did not end within {timeout_s:g} s.\n{_tail(log)}") from error
    if done.returncode != 0:
        raise ProcessFailed(f"{module} ended with exit status {done.returncode}.\n{_tail(log)}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])  # structlog prints too
    return result


def _command(module: str, spec: Mapping[str, Any]) -> list[str]:
    return [sys.executable, "-m", f"penstock.ops.bench.{module}", json.dumps(spec)]


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join([f"The end of its log, {log}:", *lines[-15:]])
