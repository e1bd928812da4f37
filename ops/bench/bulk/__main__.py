"""`python -m penstock.ops.bench.bulk`: a bulk job beside the engine alone; prints, and keeps the run as one file."""

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from penstock.ops.bench.bulk.part_share import ShareRun
from penstock.ops.bench.common.machine import describe_machine, title, use_cores
from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.common.run_clock import RunClock, TimeUp
from penstock.ops.bench.common.runs import RESULTS, begin, keep
from penstock.ops.bench.pipeline.run_facts import checkpoint, prepared, with_gpu
from penstock.ops.kafka import BrokerError

_CPU_CORES = 2
_ROWS = {"cpu": 3000, "cuda": 250_000}


def main() -> int:
    """Exit code: 0; 1 if something could not be run."""
    arguments = _parser().parse_args()
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        del os.environ[name]  # settings of a real cluster
    clock = RunClock(arguments.time_limit_s, lambda line: print(line, flush=True))
    with tempfile.TemporaryDirectory(prefix="penstock-bench-", dir=arguments.folder) as folder:
        try:
            record = _run(arguments, Path(folder), clock)
        except (BrokerError, ProcessFailed, TimeUp) as error:
            print(f"FAILED {error}", file=sys.stderr)
            return 1
    clock.say(f"kept: {keep(record, arguments.output)}")
    return 0


def _run(arguments: argparse.Namespace, folder: Path, clock: RunClock) -> dict[str, Any]:
    """The record of a run."""
    machine = describe_machine()
    header = begin("bulk", machine, commit=arguments.commit)
    found = prepared(arguments.model, folder)
    device = "cuda" if found["gpus"] else "cpu"
    if device == "cpu":
        header["machine"]["cores_used"] = use_cores(_CPU_CORES)
    header = with_gpu(header, found["machine"], found["gpus"])
    clock.say(title(header["machine"]))
    model = checkpoint(found["model"])
    if model is None:
        raise ProcessFailed("A bulk job beside the engine alone needs a model.")
    rows = arguments.rows or _ROWS[device]
    worker = shlex.split(arguments.worker_args)
    figures = ShareRun(model, device, rows, arguments.rounds, worker, folder, clock).measure()
    return {**header, "device": device, "parts": {"share": figures}}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m penstock.ops.bench.bulk", description=__doc__)
    add = parser.add_argument
    add(
        "--model",
        help="checkpoint; default: the demo's, on a GPU bert-base with random weights; bert-tiny: a small one",
    )
    add("--rows", type=int, help="rows of the job; default: 3,000 on a CPU, 250,000 on a GPU")
    add("--rounds", type=int, default=1, help="measured passes of each kind")
    add("--worker-args", default="", help="further arguments of `penstock worker`, in one string")
    add("--time-limit-s", type=float, default=600.0, help="what is not begun by then is left out")
    add("--commit", help="commit that is measured, where there is no checkout")
    add("--folder", type=Path, help="where tables and logs are written for the time of the run")
    add("--output", type=Path, default=RESULTS, metavar="DIR", help="folder of kept runs; default: ops/bench/results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
