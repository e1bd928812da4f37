"""`python -m penstock.ops.bench.bulk PART …`: measure whole bulk jobs, print, and keep each run as one file."""

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.machine import describe_machine, title, use_cores
from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.common.runs import RESULTS, begin, keep
from penstock.ops.bench.pipeline.run_clock import RunClock, TimeUp
from penstock.ops.bench.pipeline.run_facts import checkpoint, prepared, with_gpu
from penstock.ops.bench.pipeline.worker_fleet import FleetSpec
from penstock.ops.demo.banking77 import HEAD
from penstock.ops.kafka import BrokerError

_CPU_CORES = 2
_SHARE_ROWS = {"cpu": 3000, "cuda": 250_000}
_MEMORY_ROWS = 5_000_000


def main() -> int:
    """Exit code: 0; 1 if a part could not be run or found a fault."""
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
    if arguments.output is not None:
        clock.say(f"kept: {keep(record, arguments.output)}")
    return 0


def _run(arguments: argparse.Namespace, folder: Path, clock: RunClock) -> dict[str, Any]:
    """The record of a run."""
    part, model = arguments.part, arguments.model
    machine = describe_machine()
    header = begin("bulk", machine, commit=arguments.commit)
    for path in arguments.input or ():
        header["command"] = header["command"].replace(str(path), path.name)
    found = prepared("null" if part == "memory" else model, folder)
    device = "cuda" if found["gpus"] else "cpu"
    if device == "cpu":
        machine["cores_used"] = use_cores(_CPU_CORES)
        header["machine"]["cores_used"] = machine["cores_used"]
    header = with_gpu(header, found["machine"], found["gpus"])
    clock.say(f"{part} on {title(header['machine'])}")
    chosen = checkpoint(found["model"])
    if part == "share":
        from penstock.ops.bench.bulk.part_share import ShareRun

        if chosen is None:
            raise ProcessFailed("Part share needs a model.")
        rows = arguments.rows or _SHARE_ROWS[device]
        worker = shlex.split(arguments.worker_args)
        figures = ShareRun(chosen, device, rows, arguments.rounds, worker, folder, clock).measure()
    elif part == "memory":
        from penstock.ops.bench.bulk.part_memory import measure_memory

        figures = measure_memory(arguments.rows or _MEMORY_ROWS, arguments.format, folder, clock)
    else:
        from penstock.ops.bench.bulk.part_kills import measure_kills

        if chosen is None or arguments.input is None:
            raise ProcessFailed("Part kills needs --input, and a model.")
        head = HEAD if model is None else arguments.head  # without a head: embed
        worker = [
            "--device",
            "cpu",
            *([] if head is None else ["--head", str(head)]),
            *shlex.split(arguments.worker_args),
        ]
        task = "embed" if head is None else "classify"
        figures = measure_kills(FleetSpec(str(chosen), worker), task, arguments.input, folder, clock)
    return {**header, "device": device, "parts": {part: figures}}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m penstock.ops.bench.bulk", description=__doc__)
    add = parser.add_argument
    add("part", choices=["share", "memory", "kills"])
    add(
        "--model",
        help="checkpoint; default: the demo's, on a GPU bert-base with random weights; bert-tiny: a small one",
    )
    add("--rows", type=int, help="rows of the job; default: 3,000 on a CPU, 250,000 on a GPU, 5,000,000 for memory")
    add("--rounds", type=int, default=1, help="measured passes of each kind (share)")
    add("--worker-args", default="", help="further arguments of `penstock worker`, in one string (share, kills)")
    add("--format", choices=["csv", "parquet"], default="parquet", help="of input and output (memory)")
    add("--input", type=Path, nargs="+", metavar="FILE", help="tables with a column `text` (kills)")
    add("--head", type=Path, help="classification head of --model; without one the job embeds (kills)")
    add("--time-limit-s", type=float, default=600.0, help="what is not begun by then is left out")
    add("--commit", help="commit that is measured, where there is no checkout")
    add("--folder", type=Path, help="where tables and logs are written for the time of the run")
    add("--output", type=Path, default=RESULTS, metavar="DIR", help="folder of kept runs; default: ops/bench/results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
