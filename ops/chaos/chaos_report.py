"""Runs the suite, and reports on a run: what was sent, which faults came when, and whether every promise was kept."""

import asyncio
import json
import logging
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog

from penstock.ops.bench.common.part_bench import PartBench
from penstock.ops.bench.load.load_bench import say
from penstock.ops.chaos.chaos_run import ChaosRun
from penstock.ops.chaos.chaos_settings import ChaosSettings
from penstock.ops.chaos.fault_run import FaultRun, Verdict
from penstock.ops.chaos.faults import access
from penstock.ops.chaos.routes_run import RoutesRun
from penstock.ops.chaos.verdict.answered_otherwise import answered_otherwise, verdict
from penstock.ops.chaos.verdict.fault_effects import KILLS, ROLLS, Latencies, check_effects, effects, worst
from penstock.ops.chaos.verdict.judge import Judge
from penstock.ops.chaos.verdict.route_judge import RouteJudge
from penstock.ops.kafka import BrokerCluster, RegistryServer


def chaos(bench: PartBench) -> dict[str, Any]:
    """The part of the suite: a run by its options. A broken promise is a failure."""
    log, faults = bench.options["log"], bench.options["faults"]
    options = {name: value for name, value in bench.options.items() if name not in ("log", "faults")}
    kinds = faults.split(",") if faults else ()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # of the clients: brokers go away on purpose
    report = run_chaos(ChaosSettings(**options, kinds=kinds), say, None if log is None else Path(log))
    print(json.dumps(report, indent=1))
    for kind, number in report["violations"].items():
        bench.failures[kind] = {"error": "a promise was broken", "where": report["examples"][kind], "count": number}
    return report


def run_chaos(settings: ChaosSettings, tell: Callable[[str], None], log_path: Path | None = None) -> dict[str, Any]:
    """Run, and return the report; `report["violations"]` is empty if all promises were kept. Blocks.

    `log_path` gets the worker's log.
    """
    config = {
        "num.network.threads": "2",
        "num.io.threads": "4",
        "offsets.topic.segment.bytes": str(1 << 30),  # one segment, which is not compacted: the judge reads all commits
        **access.BROKER_CONFIG,
    }
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-chaos-") as folder,
        BrokerCluster(num_partitions=settings.partitions, config=config, listeners=access.LISTENERS) as cluster,
    ):
        if settings.load == "routes":
            with RegistryServer() as registry:
                routes = RoutesRun(settings, cluster, registry, Path(folder), tell)
                found = _common(routes, _judged(routes, log_path))
        else:
            run = ChaosRun(settings, cluster, Path(folder), tell)
            found = _report(run, _judged(run, log_path))
        return {**found, "seconds": round(time.monotonic() - started, 1)}


def _judged(run: FaultRun[Verdict], log_path: Path | None) -> Verdict:
    try:
        return asyncio.run(run.run())
    finally:
        if log_path is not None:
            shutil.copy(run.worker.log_path, log_path)


def _common(run: ChaosRun | RoutesRun, judge: Judge | RouteJudge) -> dict[str, Any]:
    """The fields of every report. `verdict` is of a run with routes."""
    broken = ", ".join(f"{number:,} {kind}" for kind, number in sorted(judge.violations.items()))
    faults = [asdict(fault) for fault in run.faults.injected]
    return {
        "verdict": f"Broken promises: {broken}." if broken else "No promise was broken.",
        "settings": asdict(run.settings),
        "phases_s": run.seconds,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000,  # of the load and the judge
        "counts": dict(sorted(judge.counts.items())),
        "faults": [{name: one for name, one in fault.items() if one} for fault in faults],
        "faults_of_the_load": run.worker.failures_of_engines(),
        "kinds_never_injected": run.faults.missing(run.settings.injected),
        "faults_not_injected": [f"{fault.kind}: {fault.error}" for fault in run.faults.injected if fault.error],
        "supervisors_ended": run.worker.exits,
        "members_killed": run.worker.num_killed(),
        "violations": dict(judge.violations),
        "examples": judge.examples,
    }


def _report(run: ChaosRun, judge: Judge) -> dict[str, Any]:
    calls, raw = run.calls, run.raw
    answers = max(1, judge.counts["replies"] - judge.counts["duplicates"])
    faults = effects(run.faults.injected, Latencies(judge.asked, run.topics[0]), run.started, time.time())
    for kind, example in check_effects(faults):
        judge.complain(kind, [example])
    otherwise = answered_otherwise(judge.asked, run.faults.injected)
    missing = run.faults.missing(run.settings.injected)
    return {
        **_common(run, judge),
        "verdict": verdict(judge.counts["good_requests"], otherwise, judge.violations, missing),
        "raw_duplicate_share": judge.counts["duplicates"] / answers,
        "good_requests_answered_otherwise": otherwise,
        "unacknowledged_raw_requests": raw.num_unacknowledged,
        "call_errors": dict(calls.errors),
        "faults": faults,
        "raw_requests_by_codec": dict(raw.acknowledged_by_codec),
        "slowest_recovery_after_kill_s": worst(faults, KILLS, "recovery_s"),
        "slowest_p99_of_a_roll_s": worst(faults, ROLLS, "p99_s"),
    }
