"""The other processes of a benchmark: how they are started and stopped, and watched through /proc."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

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


def start(
    command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None, takes_input: bool = False
) -> subprocess.Popen[str]:
    """A child process whose output goes to the end of a log. `environment`: beside this process's."""
    stdin = subprocess.PIPE if takes_input else subprocess.DEVNULL
    inherited = {**os.environ, **(environment or {})}
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=stdin, stdout=output, stderr=output, env=inherited, text=True)


def stop(processes: Sequence[subprocess.Popen[str]], timeout_s: float = _STOP_TIMEOUT_S) -> list[int]:
    """SIGTERM to all of them, and SIGKILL to what is left after `timeout_s`. Returns the exit codes."""
    ends = time.monotonic() + timeout_s
    for process in processes:
        process.terminate()
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, ends - time.monotonic()))
    for process in processes:
        process.kill()
    return [process.wait() for process in processes]


def tail(*logs: Path) -> str:
    """The last lines of logs, for an error message."""
    parts = []
    for log in logs:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        parts += [f"The end of {log}:", *[line[:500] for line in lines[-15:]]]
    return "\n".join(parts)


def log_events(log: Path, part: str) -> Iterator[dict[str, Any]]:
    """The JSON lines of a log that hold `part`, without lines that are not whole."""
    with log.open(encoding="utf-8", errors="replace") as lines:
        found = (line for line in lines if part in line and line.startswith("{") and line.endswith("}\n"))
        yield from map(json.loads, found)


def unix_time(event: Mapping[str, Any]) -> float:
    """When an event was logged, in seconds."""
    return datetime.fromisoformat(event["timestamp"]).timestamp()


def module_command(module: str, spec: object) -> list[str]:
    """`python -m penstock.ops.bench.<module> <spec as JSON>`."""
    return [sys.executable, "-m", f"penstock.ops.bench.{module}", json.dumps(spec)]


@contextlib.contextmanager
def serving(module: str, spec: Mapping[str, Any], log: Path) -> Iterator[int]:
    """A module of ops.bench that serves within; yields its process id. Raises ProcessFailed if it ends by itself."""
    process = start(module_command(module, spec), log)
    try:
        yield process.pid
    finally:
        ended_early = process.poll()
        stop([process])
        if ended_early is not None:
            raise ProcessFailed(f"{module} ended with exit status {ended_early}.\n{tail(log)}")


def run_to_end(command: Sequence[str], log: Path, timeout_s: float) -> bytes:
    """Run a command that must succeed; returns what it printed. Its errors go to the end of the log.

    Raises:
        ProcessFailed: it failed, or took longer than `timeout_s`.
    """
    with log.open("ab") as errors:
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, timeout=timeout_s
            )
        except subprocess.TimeoutExpired as error:
            raise ProcessFailed(f"{command} did not end within {timeout_s:g} s.\n{tail(log)}") from error
    if done.returncode != 0:
        raise ProcessFailed(f"{command} ended with exit status {done.returncode}.\n{tail(log)}")
    return done.stdout


def run_once(module: str, spec: Mapping[str, Any], log: Path, timeout_s: float = 300.0) -> dict[str, Any]:
    """Run a module to its end: see `run_to_end`. Returns the JSON object that it printed last."""
    printed = run_to_end(module_command(module, spec), log, timeout_s)
    result: dict[str, Any] = json.loads(printed.splitlines()[-1])  # structlog prints too
    return result
