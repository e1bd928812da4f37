"""Runs a suite: processes measure its parts one after another, the run is kept as they are done, its tables printed."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.machine import describe_machine, use_cores
from penstock.ops.bench.common.part_runner import BENCH_IS_SICK
from penstock.ops.bench.common.runs import RESULTS, Run, begin, keep
from penstock.ops.bench.common.suite import BenchSuite

MIN_SCALE = 0.5  # of a run that is kept by default
_CPU_CORES = 2
_POLL_S = 2.0
_GRACE_S = 60.0  # the process that measures stops itself at the limit, counted from the end of its imports

Record = dict[str, Any]


def run_suite(suite: BenchSuite, arguments: Sequence[str], program: str = "penstock bench") -> int:
    """Exit code: 0; 1 if a part or a contestant failed. The run says which and why."""
    chosen = _parser(suite, program).parse_args(arguments)
    options = {option.name: getattr(chosen, option.name) for option in suite.options}
    possible = [name for name, part in suite.parts.items() if not part.needs or options[part.needs]]
    parts = [name for name in suite.parts if name in (chosen.parts or possible)]
    is_whole = suite.is_kept and not chosen.parts and options.get("scale", 1.0) >= MIN_SCALE
    root = chosen.output or (RESULTS if is_whole else None)
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        del os.environ[name]  # settings of a real cluster
    if cores := _CPU_CORES if options.get("device") == "cpu" else suite.cores:
        use_cores(cores)
    header = {**begin(suite.name, describe_machine(), commit=chosen.commit), "options": options}
    with tempfile.TemporaryDirectory() as folder:
        run = _MeasuredRun(suite, parts, Path(folder), header, root)
        record = run.measure(options, chosen.time_limit_s)
    print(suite.shown(Run(Path(), record)))
    failed = {name: part["error"] or part["failures"] for name, part in record["parts"].items() if is_failed(part)}
    for name, why in failed.items():
        print(f"FAILED {name}: {why}", flush=True)
    where = (
        "Not kept: whole runs alone are, by default. --output DIR keeps any."
        if root is None
        else f"Kept: {keep(record, root)}"
    )
    print(f"{len(parts) - len(failed)} of {len(parts)} parts without a failure. {where}")
    return 1 if failed else 0


def is_failed(part: Record) -> bool:
    """Whether a part, or a contestant in it, has no figure."""
    return part["error"] is not None or bool(part["failures"])


def collect(parts: Sequence[str], folder: Path, header: Record) -> Record:
    """One record of the files that are there: the machine with its GPU, and the parts."""
    files = {name: folder / f"{name}.json" for name in ("machine", *parts)}
    found = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items() if file.exists()}
    host, gpu = header["machine"], found.pop("machine", {})
    versions = host["versions"] | {name: one for name, one in gpu.get("versions", {}).items() if one is not None}
    return {**header, "machine": {**host, **gpu, "versions": versions}, "parts": found}


class _MeasuredRun:
    """The parts of one run, each in a file of a folder once it is done."""

    def __init__(
        self, suite: BenchSuite, parts: Sequence[str], folder: Path, header: Record, root: Path | None
    ) -> None:
        self._suite, self._parts, self._folder, self._header, self._root = suite, parts, folder, header, root

    def measure(self, options: Mapping[str, Any], time_limit_s: float) -> Record:
        """Start one process after another until every part has an outcome."""
        ends = time.monotonic() + time_limit_s
        while missing := self._missing():
            seconds_left = ends - time.monotonic()
            parts = {name: self._suite.parts[name] for name in missing}
            order = {
                "bench": self._suite.bench,
                "options": options,
                "seconds_left": seconds_left,
                "parts": {name: [one.function, one.budget_s, *one.arguments] for name, one in parts.items()},
            }
            module = "penstock.ops.bench.common.part_runner"
            worker = subprocess.Popen([sys.executable, "-m", module, str(self._folder), json.dumps(order)])
            code = _wait(worker, seconds_left + _GRACE_S, self._keep)
            undone = self._missing()
            if code is None:
                self._give_up(undone, "the time limit of the run has passed")
            elif not (self._folder / "machine.json").exists():
                self._give_up(undone, f"the process could not start: exit code {code}")
            elif code != BENCH_IS_SICK:  # it died in the first of the parts that are left
                self._give_up(undone[:1], f"the process ended with exit code {code}")
        return collect(self._parts, self._folder, self._header)

    def _missing(self) -> list[str]:
        return [name for name in self._parts if not (self._folder / f"{name}.json").exists()]

    def _keep(self) -> None:
        """Keep the parts that are done, once the machine is known: its name is part of the path."""
        if self._root is not None and (self._folder / "machine.json").exists():
            keep(collect(self._parts, self._folder, self._header), self._root)

    def _give_up(self, parts: Sequence[str], why: str) -> None:
        for name in parts:
            record: Record = {"error": why, "seconds": None, "failures": {}, "result": None}
            (self._folder / f"{name}.json").write_text(json.dumps(record), encoding="utf-8")


def _parser(suite: BenchSuite, program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"{program} {suite.name}", description=suite.about)
    known = ", ".join(suite.parts)
    parser.add_argument("parts", nargs="*", choices=[*suite.parts, []], help=f"any of {known}; default: all")
    for one in suite.options:
        flag = f"--{one.name.replace('_', '-')}"
        shown = one.help if one.default in (None, "") else f"{one.help}; default: {one.default}"
        parser.add_argument(flag, type=one.type, default=one.default, choices=one.choices, help=shown)
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="folder of kept runs; default for whole runs: ops/bench/results"
    )
    parser.add_argument("--commit", help="of the code that is measured, where there is no git checkout")
    parser.add_argument("--time-limit-s", type=float, default=suite.time_limit_s, help="for the whole run")
    return parser


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
