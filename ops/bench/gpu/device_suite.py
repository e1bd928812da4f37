"""A suite of parts that measure a device: one process after another runs them, and the run is kept as they are done."""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.machine import describe_machine, use_cores
from penstock.ops.bench.common.runs import RESULTS, Run, begin, keep
from penstock.ops.bench.common.tables import Table

SEED = 2026
DEVICE_IS_SICK = 3  # exit code of the measuring process: the parts that are left need a new one
_CPU_CORES = 2
_POLL_S = 2.0
_GRACE_S = 20.0  # the process that measures stops itself at the limit, counted from the end of its imports

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """`function`(bench, *arguments) returns the figures of the part, ready for JSON."""

    function: str  # module:function
    budget_s: float  # expected on an H200; the part is stopped at three times that
    arguments: Sequence[Any] = ()  # as JSON has them


@dataclass(frozen=True, slots=True)
class DeviceSuite:
    """A command with its parts, in their order. A part that fails costs its own figures alone."""

    name: str  # of its folder of kept runs
    program: str
    bench: str  # module:class, a `DeviceBench`, which the parts share
    tables: str  # module:name of its tables by name
    parts: Mapping[str, Part]
    time_limit_s: float

    def main(self, arguments: Sequence[str]) -> int:
        """Exit code: 0; 1 if a part or a contestant failed. The file says which and why."""
        parser = self._parser()
        chosen = parser.parse_args(arguments)
        if chosen.output is None:
            if chosen.parts:
                parser.error("Only whole runs are kept by default. Give --output DIR for some parts alone.")
            chosen.output = RESULTS
        if chosen.device == "cpu":
            use_cores(_CPU_CORES)
        parts = [name for name in self.parts if not chosen.parts or name in chosen.parts]
        header = {**begin(self.name, describe_machine(), commit=chosen.commit), "seed": chosen.seed}
        with tempfile.TemporaryDirectory() as folder:
            path = self._measure(parts, Path(folder), {**header, "device": chosen.device}, chosen)
        record = json.loads(path.read_text(encoding="utf-8"))
        print(self.shown(Run(path, record)))
        failed = {name: part["error"] or part["failures"] for name, part in record["parts"].items() if is_failed(part)}
        for name, why in failed.items():
            print(f"FAILED {name}: {why}", flush=True)
        print(f"Written to {path}: {len(parts) - len(failed)} of {len(parts)} parts without a failure.")
        return 1 if failed else 0

    def shown(self, run: Run) -> str:
        """All tables of one run."""
        tables = [one for one in named(self.tables).values() if isinstance(one, Table)]
        return "\n\n".join(filter(None, (table.of_runs([run]) for table in tables)))

    def _measure(self, parts: list[str], folder: Path, header: Record, chosen: argparse.Namespace) -> Path:
        """Run one process after another until every part has an outcome. The run is kept anew as parts are done."""
        ends = time.monotonic() + chosen.time_limit_s
        while missing := [name for name in parts if not (folder / f"{name}.json").exists()]:
            seconds_left = ends - time.monotonic()
            order = {
                "bench": self.bench,
                "device": chosen.device,
                "seed": chosen.seed,
                "seconds_left": seconds_left,
                "parts": {name: [one.function, one.budget_s, *one.arguments] for name, one in self._of(missing)},
            }
            command = [sys.executable, "-m", "penstock.ops.bench.gpu.part_runner", str(folder), json.dumps(order)]
            worker = subprocess.Popen(command)
            code = _wait(worker, seconds_left + _GRACE_S, lambda: _keep_parts(parts, folder, header, chosen.output))
            undone = [name for name in parts if not (folder / f"{name}.json").exists()]
            if code is None:
                _give_up(folder, undone, "the time limit of the run has passed")
            elif not (folder / "machine.json").exists():
                _give_up(folder, undone, f"the process could not start: exit code {code}")
            elif code != DEVICE_IS_SICK:  # it died in the first of the parts that are left
                _give_up(folder, undone[:1], f"the process ended with exit code {code}")
        return keep(collect(parts, folder, header), chosen.output)

    def _of(self, names: Sequence[str]) -> list[tuple[str, Part]]:
        return [(name, self.parts[name]) for name in names]

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=self.program)
        known = ", ".join(self.parts)
        parser.add_argument("parts", nargs="*", choices=[*self.parts, []], help=f"any of {known}; default: all")
        parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: times mean nothing there")
        parser.add_argument(
            "--output", type=Path, metavar="DIR", help="folder of kept runs; default for whole runs: ops/bench/results"
        )
        parser.add_argument("--commit", help="of the code that is measured, where there is no git checkout")
        parser.add_argument("--seed", type=int, default=SEED)
        parser.add_argument("--time-limit-s", type=float, default=self.time_limit_s, help="for the whole run")
        return parser


def named(target: str) -> Any:
    """What "module:name" names. Imported when it is needed: torch takes seconds."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


def is_failed(part: Record) -> bool:
    """Whether a part, or a contestant in it, has no figure."""
    return part["error"] is not None or bool(part["failures"])


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
