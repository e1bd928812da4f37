"""`python -m penstock.ops.bench.gpu [part ...] --output DIR`: measure. `... report FILE --output-dir DIR`: show."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.machine import describe_machine
from penstock.ops.bench.common.runs import RESULTS, begin, keep
from penstock.ops.bench.gpu.part_list import DEVICE_IS_SICK, PARTS

SEED = 2026
TIME_LIMIT_S = 420.0
_POLL_S = 2.0
_GRACE_S = 20.0  # the process that measures stops itself at the limit, counted from the end of its imports

Record = dict[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0; 1 if a part or a contestant failed. The file says which and why."""
    if arguments and arguments[0] == "report":
        from penstock.ops.bench.gpu.report.report_command import main as report  # measuring needs no plotting library

        return report(arguments[1:])
    parser = _parser()
    chosen = parser.parse_args(arguments)
    if chosen.output is None:
        if chosen.parts:
            parser.error("Only whole runs are kept by default. Give --output DIR for some parts alone.")
        chosen.output = RESULTS
    parts = [name for name in PARTS if not chosen.parts or name in chosen.parts]
    header = {**begin("gpu", describe_machine(), commit=chosen.commit), "seed": chosen.seed}
    with tempfile.TemporaryDirectory() as folder:
        path = measure(parts, Path(folder), header, chosen)
    record = json.loads(path.read_text(encoding="utf-8"))
    failed = {name: part["error"] or part["failures"] for name, part in record["parts"].items() if is_failed(part)}
    for name, why in failed.items():
        print(f"FAILED {name}: {why}", flush=True)
    print(f"Written to {path}: {len(parts) - len(failed)} of {len(parts)} parts without a failure.")
    return 1 if failed else 0


def measure(parts: list[str], folder: Path, header: Record, chosen: argparse.Namespace) -> Path:
    """Run one process after another until every part has an outcome. The run is kept anew as parts are done."""
    ends = time.monotonic() + chosen.time_limit_s
    while missing := [name for name in parts if not (folder / f"{name}.json").exists()]:
        seconds_left = ends - time.monotonic()
        command = [sys.executable, "-m", "penstock.ops.bench.gpu.part_runner", str(folder), str(chosen.seed)]
        worker = subprocess.Popen([*command, str(seconds_left), *missing])
        code = _wait(worker, seconds_left + _GRACE_S, lambda: _keep_parts(parts, folder, header, chosen.output))
        undone = [name for name in parts if not (folder / f"{name}.json").exists()]
        if code is None:
            _give_up(folder, undone, "the time limit of the run has passed")
        elif not (folder / "machine.json").exists():
            _give_up(folder, undone, f"the process could not start: exit code {code}")
        elif code != DEVICE_IS_SICK:  # it died in the first of the parts that are left
            _give_up(folder, undone[:1], f"the process ended with exit code {code}")
    return keep(collect(parts, folder, header), chosen.output)


def collect(parts: Sequence[str], folder: Path, header: Record) -> Record:
    """One record of the files that are there: the machine with its GPU, and the parts."""
    files = {name: folder / f"{name}.json" for name in ("machine", *parts)}
    found = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}
    host, gpu = header["machine"], found.pop("machine", {})
    versions = {**host["versions"], **gpu.get("versions", {})}
    return {**header, "machine": {**host, **gpu, "versions": versions}, "parts": found}


def _keep_parts(parts: Sequence[str], folder: Path, header: Record, output: Path) -> None:
    """Keep the parts that are done, once the GPU is known: its name is part of the path."""
    if (folder / "machine.json").exists():
        keep(collect(parts, folder, header), output)


def is_failed(part: Record) -> bool:
    """Whether a part, or a contestant in it, has no figure."""
    return part["error"] is not None or bool(part["failures"])


def _wait(worker: "subprocess.Popen[bytes]", seconds: float, on_poll: Callable[[], object]) -> int | None:
    """The worker's exit code; None if it was killed at its time limit."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            return worker.wait(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            on_poll()
    worker.kill()
    worker.wait()
    return None


def _give_up(folder: Path, parts: Sequence[str], why: str) -> None:
    for name in parts:
        record: Record = {"error": why, "seconds": None, "failures": {}, "result": None}
        (folder / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.ops.bench.gpu",
        description="The GPU benchmarks. `report FILE --output-dir DIR` renders a result file.",
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help=f"any of {', '.join(PARTS)}; default: all")
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder of kept runs; default for whole runs: ops/bench/results"
    )
    parser.add_argument("--commit", help="of the code that is measured, where there is no git checkout")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--time-limit-s", type=float, default=TIME_LIMIT_S, help="for the whole run")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
