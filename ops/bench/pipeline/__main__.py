"""`python -m penstock.ops.bench.pipeline [part ...]`: measure, print, and keep the figures in one JSON file."""

import argparse
import dataclasses
import json
import math
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from penstock.ops.bench.common.claims import PartResult
from penstock.ops.bench.common.machine import describe_machine, slug, use_cores
from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.common.report import show_claims, show_grid
from penstock.ops.bench.common.setup import Setup
from penstock.ops.demo.model import ModelUnavailable, model_directory
from penstock.ops.kafka import BrokerError

CORES = 2  # the targets are for two
RESULTS = Path(__file__).parent.parent / "results"
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
    """Exit code: 0; 1 if something could not be run. A missed target is a result, not a failure."""
    arguments = _parser().parse_args()
    console = Console(width=max(160, Console().width))
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        del os.environ[name]  # settings of somebody's real cluster
    use_cores(CORES)
    machine = describe_machine()
    setup_logs = Path(tempfile.mkdtemp(prefix="penstock-bench-"))  # stays, for the reader
    console.print(f"{machine['cpu']}, {len(machine['cores_used'])} cores; logs in {setup_logs}")
    started = datetime.now(UTC)
    try:
        parts = arguments.parts or list(PARTS)
        _require_faststream(parts)
        setup = Setup(model_directory(), setup_logs, len(machine["cores_used"]), arguments.scale)
        results = {part: _run_part(console, part, setup) for part in parts}
    except (BrokerError, ModelUnavailable, ProcessFailed) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    if len(results) > 1:
        console.rule("all")
        show_claims(console, [claim for result in results.values() for claim in result.claims])
    output = arguments.output or _default_output(machine, arguments)
    if output is not None:
        record = {
            "command": shlex.join(["python", "-m", "penstock.ops.bench.pipeline", *sys.argv[1:]]),
            "started": started.isoformat(timespec="seconds"),
            "scale": arguments.scale,
            "machine": machine,
            "load_average_after": os.getloadavg(),
            "parts": {part: to_json(result) for part, result in results.items()},
        }
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        console.print(f"Written to {output}")
    else:
        console.print("Not kept: only a whole run at full scale is a result. --output keeps any run.")
    return 0


def to_json(result: PartResult) -> dict[str, Any]:
    """A part's result with each claim's verdict, for the result file."""
    record = dataclasses.asdict(result)
    for claim, shown in zip(result.claims, record["claims"], strict=True):
        if claim.criterion is not None:
            shown["criterion"]["verdict"] = claim.criterion.verdict
    finite: dict[str, Any] = _finite(record)
    return finite


def _finite(value: Any) -> Any:
    """JSON has no infinity: a latency or ratio that is infinite becomes null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _require_faststream(parts: Sequence[str]) -> None:
    """Found out now, and not when a service does not start after minutes of measuring."""
    if {"end-to-end", "latency"} & set(parts) and find_spec("faststream") is None:
        raise ProcessFailed("The alternative end to end is not installed. Run: pip install 'penstock[bench]'")


def _run_part(console: Console, part: str, setup: Setup) -> PartResult:
    module, function = PARTS[part].split(":")
    started = time.monotonic()
    with console.status(f"{part} ..."):
        run: Callable[[Setup], PartResult] = getattr(import_module(f"penstock.ops.bench.pipeline.{module}"), function)
        result = run(setup)
    console.rule(f"{part} ({time.monotonic() - started:.0f} s)")
    for grid in result.grids:
        show_grid(console, grid)
    if result.claims:
        show_claims(console, result.claims)
    if "not_applicable" in result.details:
        console.print(f"Not applicable: {result.details['not_applicable']}.")
    return result


def _default_output(machine: Mapping[str, Any], arguments: argparse.Namespace) -> Path | None:
    return RESULTS / f"{slug(machine)}.json" if arguments.scale == 1 and not arguments.parts else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.ops.bench.pipeline", description="The benchmarks of penstock."
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help=f"any of {', '.join(PARTS)}; default: all")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the requests; below 1 for trying out")
    parser.add_argument(
        "--output", type=Path, help="result file; default: results/<processor>.json, for whole runs only"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
