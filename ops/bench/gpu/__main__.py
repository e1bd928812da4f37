"""`python -m penstock.ops.bench.gpu [part ...] --output FILE`: measure. `... report FILE --output-dir DIR`: show."""

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.ops.bench.gpu.parts import DEVICE_IS_SICK, PARTS

SEED = 2026
TIME_LIMIT_S = 720.0
_POLL_S = 2.0
_GRACE_S = 20.0  # the worker stops itself at the limit, counted from when its imports are done


def main(arguments: Sequence[str]) -> int:
    """Exit code: 0; 1 if a part or a contestant failed, in which case the file says which and why."""
    if arguments and arguments[0] == "report":
        from penstock.ops.bench.gpu.report import main as report  # measuring needs no plotting library

        return report(arguments[1:])
    chosen = _parser().parse_args(arguments)
    parts = [name for name in PARTS if not chosen.parts or name in chosen.parts]
    header = {
        "command": shlex.join(["python", "-m", "penstock.ops.bench.gpu", *arguments]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": chosen.commit,
        "seed": chosen.seed,
    }
    with tempfile.TemporaryDirectory() as folder:
        record = measure(parts, Path(folder), header, chosen)
    failed = {name: part["error"] or part["failures"] for name, part in record["parts"].items() if is_failed(part)}
    for name, why in failed.items():
        print(f"FAILED {name}: {why}", flush=True)
    print(f"Written to {chosen.output}: {len(parts) - len(failed)} of {len(parts)} parts without a failure.")
    return 1 if failed else 0


def measure(parts: list[str], folder: Path, header: dict[str, Any], chosen: argparse.Namespace) -> dict[str, Any]:
    """Worker processes one after another until every part has an outcome. The output is written as parts are done."""
    ends = time.monotonic() + chosen.time_limit_s
    while missing := [name for name in parts if not (folder / f"{name}.json").exists()]:
        seconds_left = ends - time.monotonic()
        command = [sys.executable, "-m", "penstock.ops.bench.gpu.part_runner", str(folder), str(chosen.seed)]
        worker = subprocess.Popen([*command, str(seconds_left), *missing])
        code = _wait(worker, seconds_left + _GRACE_S, lambda: collect(parts, folder, header, chosen.output))
        undone = [name for name in parts if not (folder / f"{name}.json").exists()]
        if code is None:
            _give_up(folder, undone, "the time limit of the run has passed")
        elif not (folder / "machine.json").exists():
            _give_up(folder, undone, f"the process could not start: exit code {code}")
        elif code != DEVICE_IS_SICK:  # it died in the first of them
            _give_up(folder, undone[:1], f"the process ended with exit code {code}")
    return collect(parts, folder, header, chosen.output)


def collect(parts: Sequence[str], folder: Path, header: dict[str, Any], output: Path) -> dict[str, Any]:
    """One record of all the files that are there, written to `output`."""
    files = {name: folder / f"{name}.json" for name in ("machine", *parts)}
    found = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}
    record = {**header, "machine": found.pop("machine", {}), "parts": found}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


def is_failed(part: dict[str, Any]) -> bool:
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
        record: dict[str, Any] = {"error": why, "seconds": None, "failures": {}, "result": None}
        (folder / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m penstock.ops.bench.gpu",
        description="The GPU benchmarks. `report FILE --output-dir DIR` renders a result file.",
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help=f"any of {', '.join(PARTS)}; default: all")
    parser.add_argument("--output", type=Path, required=True, help="result file (JSON)")
    parser.add_argument("--commit", help="of the code that is measured, for the result file")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--time-limit-s", type=float, default=TIME_LIMIT_S, help="for the whole run")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
