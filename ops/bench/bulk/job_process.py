"""A bulk job as a user starts it, in a process of its own whose memory is watched."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.processes import ProcessFailed, cpu_s
from penstock.ops.bench.pipeline.worker_fleet import PENSTOCK

_SAMPLE_S = 0.2


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a command to its end."""

    exit_code: int
    wall_s: float  # of the whole process
    cpu_s: float
    peak_rss_bytes: int
    rss_bytes: Sequence[int]  # about once a second
    said: str  # on stderr


def run_job(
    arguments: Sequence[str], log: Path, *, end_when: Callable[[], bool] = lambda: False, timeout_s: float = 600.0
) -> JobRun:
    """Run `penstock …` and watch it.

    Args:
        log: receives stderr.
        end_when: asked at each sample; once it is true, the process is ended by SIGKILL.

    Raises:
        ProcessFailed: it did not end within `timeout_s`.
    """
    begun = time.monotonic()
    peak, used_s, series = 0, 0.0, list[int]()
    with log.open("wb") as errors:
        process = subprocess.Popen([*PENSTOCK, *arguments], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors)
    try:
        while process.poll() is None:
            elapsed_s = time.monotonic() - begun
            rss, high_water = _memory(process.pid)
            peak, used_s = max(peak, high_water), max(used_s, _cpu_s(process.pid))
            if elapsed_s >= len(series):
                series.append(rss)
            if end_when():
                process.kill()
            if elapsed_s > timeout_s:
                raise ProcessFailed(f"The job did not end within {timeout_s:g} s.")
            time.sleep(_SAMPLE_S)
    finally:
        process.kill()
        process.wait()
    wall_s = time.monotonic() - begun
    return JobRun(process.returncode, wall_s, used_s, peak, series, log.read_text(encoding="utf-8", errors="replace"))


def run_whole_job(arguments: Sequence[str], folder: Path, timeout_s: float = 600.0) -> tuple[JobRun, dict[str, Any]]:
    """Run a job that must succeed; returns it, and its report.

    Raises:
        ProcessFailed: it failed, or did not end in time.
    """
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    run = run_job([*arguments, "--report", str(report)], folder / "job.log", timeout_s=timeout_s)
    if run.exit_code != 0:
        raise ProcessFailed(f"The job ended with exit code {run.exit_code}:\n{run.said[-2000:]}")
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return run, found


def _memory(pid: int) -> tuple[int, int]:
    """Resident memory now and at most, in bytes; zeros once the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    found = {name: value for name, _, value in (line.partition(":") for line in lines)}
    now, high = (int(found.get(name, "0 kB").split()[0]) << 10 for name in ("VmRSS", "VmHWM"))
    return now, high


def _cpu_s(pid: int) -> float:
    try:
        return sum(cpu_s(pid))
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
