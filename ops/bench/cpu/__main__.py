"""`python -m penstock.ops.bench.cpu [part ...]`: measure, print, and keep a whole run as one file."""

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from penstock.ops.bench.common.comparison import PartResult
from penstock.ops.bench.common.machine import describe_machine, title, use_cores
from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.common.report import show_comparisons, show_grid
from penstock.ops.bench.common.runs import RESULTS, begin, keep
from penstock.ops.bench.common.setup import Setup
from penstock.ops.demo.model import ModelUnavailable, model_directory
from penstock.ops.kafka import BrokerError

CORES = 2
MIN_SCALE = 0.5  # of a run that is kept by default
# part -> module:function of this package, imported when it runs: torch takes seconds
PARTS: Mapping[str, str] = {
    "engine": "part_engine:run_float32",
    "engine-bf16": "part_engine:run_bfloat16",
    "end-to-end": "part_end_to_end:run_end_to_end",
    "latency": "part_latency:run_latency",
    "null": "part_null:run_null",
    "profile": "part_null:run_profile",
    "memory": "part_null:run_memory",
}


def main() -> int:
    """Exit code: 0; 1 if something could not be run."""
    arguments = _parser().parse_args()
    console = Console(width=max(160, Console().width))
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        del os.environ[name]  # settings of a real cluster
    use_cores(CORES)
    machine = describe_machine()
    logs = Path(tempfile.mkdtemp(prefix="penstock-bench-"))  # stays, for the reader
    console.print(f"{title(machine)}; logs in {logs}")
    header = begin("cpu", machine)
    try:
        parts = arguments.parts or list(PARTS)
        _require_faststream(parts)
        setup = Setup(model_directory(), logs, len(machine["cores_used"]), arguments.scale)
        results = {part: _run_part(console, part, setup) for part in parts}
    except (BrokerError, ModelUnavailable, ProcessFailed) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    if len(results) > 1:
        console.rule("all")
        show_comparisons(console, [row for result in results.values() for row in result.comparisons])
    root = arguments.output or (RESULTS if arguments.scale >= MIN_SCALE and not arguments.parts else None)
    if root is None:
        console.print(f"Not kept: this is no whole run of scale {MIN_SCALE:g} or more. --output DIR keeps any run.")
        return 0
    kept = {part: dataclasses.asdict(result) for part, result in results.items()}
    console.print(f"Written to {keep({**header, 'scale': arguments.scale, 'parts': kept}, root)}")
    return 0


def _require_faststream(parts: Sequence[str]) -> None:
    """Raises ProcessFailed before anything is measured, and not when a service fails to start minutes later."""
    if {"end-to-end", "latency"} & set(parts) and find_spec("faststream") is None:
        raise ProcessFailed("The alternative end to end is not installed. Run: pip install 'penstock[bench]'")


def _run_part(console: Console, part: str, setup: Setup) -> PartResult:
    module, function = PARTS[part].split(":")
    started = time.monotonic()
    with console.status(f"{part} ..."):
        run: Callable[[Setup], PartResult] = getattr(import_module(f"penstock.ops.bench.cpu.{module}"), function)
        result = run(setup)
    console.rule(f"{part} ({time.monotonic() - started:.0f} s)")
    for grid in result.grids:
        show_grid(console, grid)
    if result.comparisons:
        show_comparisons(console, result.comparisons)
    if "not_applicable" in result.details:
        console.print(f"Not applicable: {result.details['not_applicable']}.")
    return result


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m penstock.ops.bench.cpu", description="The benchmarks of penstock.")
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help=f"any of {', '.join(PARTS)}; default: all")
    parser.add_argument(
        "--scale",
        type=float,
        default=1.0,
        help="number of requests, as a share of the usual; 1 takes some five minutes on two idle cores",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of kept runs; default for whole runs: ops/bench/results, for others: not kept",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
