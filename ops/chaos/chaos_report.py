"""Runs the suite, and reports on a run: what was sent, which faults came when, and whether every promise was kept."""

import asyncio
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.ops.chaos import access
from penstock.ops.chaos.chaos_run import ChaosRun, ChaosSettings
from penstock.ops.chaos.faults import Injected
from penstock.ops.chaos.judge import Judge
from penstock.ops.chaos.latencies import Latencies
from penstock.ops.kafka import BrokerCluster

KILLS = frozenset({"member_killed", "supervisor_killed"})


def run_chaos(settings: ChaosSettings, say: Callable[[str], None], log_path: Path | None = None) -> dict[str, Any]:
    """Run, and return the report; `report["violations"]` is empty if all promises were kept. Blocks.

    `log_path` gets the worker's log.
    """
    config = {"num.network.threads": "2", "num.io.threads": "4", **access.BROKER_CONFIG}
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-chaos-") as folder,
        BrokerCluster(num_partitions=settings.partitions, config=config, listeners=access.LISTENERS) as cluster,
    ):
        run = ChaosRun(settings, cluster, Path(folder), say)
        try:
            judge = asyncio.run(run.run())
        finally:
            if log_path is not None:
                shutil.copy(run.worker.log_path, log_path)
        return _report(run, judge, time.monotonic() - started)


def _report(run: ChaosRun, judge: Judge, seconds: float) -> dict[str, Any]:
    calls, raw = run.traffic.calls, run.traffic.raw
    answers = max(1, judge.counts["replies"] - judge.counts["duplicates"])
    faults = _faults(run, Latencies(judge.asked, run.topics[0]))
    return {
        "settings": asdict(run.settings),
        "seconds": round(seconds, 1),
        "phases_s": run.seconds,
        "counts": dict(sorted(judge.counts.items())),
        "raw_duplicate_share": judge.counts["duplicates"] / answers,
        "unacknowledged_raw_requests": raw.num_unacknowledged,
        "call_errors": dict(calls.errors),
        "faults": faults,
        "faults_not_injected": [f"{fault.kind}: {fault.error}" for fault in run.faults.injected if fault.error],
        "slowest_recovery_after_kill_s": _worst(faults, KILLS, "recovery_s"),
        "slowest_p99_of_a_roll_s": _worst(faults, frozenset({"rolled"}), "p99_s"),
        "supervisors_ended": run.worker.exits,
        "members_ended": len(run.worker.events("member_exited")),
        "violations": dict(judge.violations),
        "examples": judge.examples,
    }


def _faults(run: ChaosRun, latencies: Latencies) -> list[dict[str, Any]]:
    """Each fault, in order of their starts. Of one that came alone: the recovery after it, and the p99 during it."""
    injected = sorted(run.faults.injected, key=lambda fault: fault.started)
    nexts = [*[fault.started for fault in injected], time.time()][1:]
    return [_fault(run, fault, until, latencies) for fault, until in zip(injected, nexts, strict=True)]


def _fault(run: ChaosRun, fault: Injected, until: float, latencies: Latencies) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "kind": fault.kind,
        "at_s": round(fault.started - run.started, 1),
        "seconds": round(fault.ended - fault.started, 1),
    }
    if fault.beside:
        return shown | {"beside": [*fault.beside]}
    p99 = latencies.p99_s(fault.started, fault.ended)
    shown["recovery_s"] = round(latencies.recovery_s(fault.started, until), 1)
    return shown | {"p99_s": None if p99 is None else round(p99, 3)}


def _worst(faults: list[dict[str, Any]], kinds: frozenset[str], measure: str) -> float | None:
    found = [fault[measure] for fault in faults if fault["kind"] in kinds and fault.get(measure) is not None]
    return max(found, default=None)
