"""`python -m penstock.ops.chaos --seed 1 --minutes 10`: exit code 1 if any promise of delivery was broken."""

import argparse
import json
import logging
import sys
import time
from pathlib import Path

import structlog

from penstock.ops.bench.common.machine import describe_machine
from penstock.ops.bench.common.runs import begin, keep
from penstock.ops.chaos.chaos_report import run_chaos
from penstock.ops.chaos.chaos_settings import ChaosSettings
from penstock.ops.chaos.faults.faults import KINDS


def main() -> int:
    """Run, print the report as JSON, and keep it with `--keep`."""
    options = argparse.ArgumentParser(prog="python -m penstock.ops.chaos", description=__doc__)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--minutes", type=float, default=10.0, help="of the load, at most")
    options.add_argument("--requests", type=int, help="plain records after which the load ends; default: none")
    options.add_argument("--processes", type=int, default=2, help="members of the worker")
    options.add_argument("--rate", type=float, default=200.0, help="plain records a second, beside the calls")
    options.add_argument("--callers", type=int, default=8, help="calls of clients at the same time")
    options.add_argument("--faults", dest="kinds", default=KINDS, type=_kinds, help="kinds, separated by commas")
    options.add_argument("--delivery", choices=("at_least_once", "exactly_once"), default="at_least_once")
    options.add_argument("--log", type=Path, help="file that gets the worker's log")
    options.add_argument("--keep", action="store_true", help="write the report into ops/bench/results/chaos")
    given = vars(options.parse_args())
    log, is_kept = given.pop("log"), given.pop("keep")
    settings = ChaosSettings(**given)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # of the clients: brokers go away on purpose
    header = begin("chaos", describe_machine())
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {line}", file=sys.stderr)

    report = run_chaos(settings, say, log)
    print(json.dumps(report, indent=1))
    if is_kept:
        print(f"Written to {keep({**header, 'parts': {'chaos': report}})}", file=sys.stderr)
    return 1 if report["violations"] else 0


def _kinds(listed: str) -> tuple[str, ...]:
    return tuple(kind for kind in listed.split(",") if kind)


if __name__ == "__main__":
    sys.exit(main())
