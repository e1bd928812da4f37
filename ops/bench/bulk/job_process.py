"""A bulk job as a user starts it, in a process of its own."""

import json
import resource
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.contestants.worker_fleet import PENSTOCK


@dataclass(frozen=True, slots=True)
class JobRun:
    """One run of a command to its end."""

    wall_s: float  # of the whole process
    cpu_s: float
    report: dict[str, Any]


def run_job(arguments: Sequence[str], folder: Path, timeout_s: float = 600.0) -> JobRun:
    """Run `penstock …`, which must succeed. Nothing else that this process started may end meanwhile.

    Raises:
        ProcessFailed: it failed, or did not end in time.
    """
    report, log = folder / "report.json", folder / "job.log"
    report.unlink(missing_ok=True)
    command = [*PENSTOCK, *arguments, "--report", str(report)]
    before_s, begun = _ended_cpu_s(), time.monotonic()
    with log.open("wb") as said:
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ProcessFailed(f"The job did not end within {timeout_s:g} s.") from error
    wall_s, cpu_s = time.monotonic() - begun, _ended_cpu_s() - before_s
    if done.returncode != 0:
        text = log.read_text(encoding="utf-8", errors="replace")
        raise ProcessFailed(f"The job ended with exit code {done.returncode}:\n{text[-2000:]}")
    return JobRun(wall_s, cpu_s, json.loads(report.read_text(encoding="utf-8")))


def _ended_cpu_s() -> float:
    """Processor seconds of the child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
