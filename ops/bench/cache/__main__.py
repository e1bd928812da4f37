"""`python -m penstock.ops.bench.cache [part ...]`: measure the response cache, print, and keep a whole run."""

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from penstock.ops.bench.cache.part_hits import run_hits
from penstock.ops.bench.cache.part_misses import run_misses
from penstock.ops.bench.cache.part_zipf import run_zipf
from penstock.ops.bench.common.comparison import PartResult
from penstock.ops.bench.common.console_tables import show_comparisons, show_grid
from penstock.ops.bench.common.machine import describe_machine, title, use_cores
from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.common.runs import RESULTS, begin, keep
from penstock.ops.bench.common.setup import Setup
from penstock.ops.demo.demo_model import ModelUnavailable, model_directory
from penstock.ops.kafka import BrokerError
from penstock.worker.telemetry.logs import configure_logs

CORES = 2
PARTS: Mapping[str, Callable[[Setup], PartResult]] = {"hits": run_hits, "zipf": run_zipf, "misses": run_misses}


def main() -> int:
    """Exit code: 0; 1 if something could not be run."""
    arguments = _parser().parse_args()
    console = Console(width=max(160, Console().width))
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        del os.environ[name]  # settings of a real cluster
    configure_logs("console", "warning")
    use_cores(CORES)
    machine = describe_machine()
    logs = Path(tempfile.mkdtemp(prefix="penstock-bench-"))  # stays, for the reader
    console.print(f"{title(machine)}; logs and cache files in {logs}")
    header = begin("cache", machine)
    try:
        setup = Setup(model_directory(), logs, len(machine["cores_used"]), arguments.scale)
        results = {part: _run_part(console, part, setup) for part in arguments.parts or PARTS}
    except (BrokerError, ModelUnavailable, ProcessFailed) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    root = arguments.output or (RESULTS if arguments.scale >= 1 and not arguments.parts else None)
    if root is None:
        console.print("Not kept: this is no whole run of scale 1 or more. --output DIR keeps any run.")
        return 0
    kept = {part: dataclasses.asdict(result) for part, result in results.items()}
    console.print(f"Written to {keep({**header, 'scale': arguments.scale, 'parts': kept}, root)}")
    return 0


def _run_part(console: Console, part: str, setup: Setup) -> PartResult:
    started = time.monotonic()
    with console.status(f"{part} ..."):
        result = PARTS[part](setup)
    console.rule(f"{part} ({time.monotonic() - started:.0f} s)")
    for grid in result.grids:
        show_grid(console, grid)
    show_comparisons(console, result.comparisons)
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m penstock.ops.bench.cache", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help=f"any of {', '.join(PARTS)}; default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="number of requests, as a share of the usual")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of kept runs; default for whole runs: ours")
    return parser


if __name__ == "__main__":
    sys.exit(main())
