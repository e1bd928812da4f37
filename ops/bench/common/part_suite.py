"""The command of a suite of parts: run the chosen ones, print the suite's tables, and keep a whole run as one file.

    PARTS = {"loads": "penstock.ops.bench.serving.part_loads:run"}
    SUITE = PartSuite("serving-kafka", PARTS, TABLES, "share of the usual seconds")
    sys.exit(SUITE.run(SUITE.parser("Batching policies.").parse_args()))

A part is a function of `Setup`. It returns every raw figure as JSON, under which a run keeps them as `details`; what is
printed is what the kept run's tables say of it, and nothing else.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown

from penstock.ops.bench.common.machine import describe_machine, title, use_cores
from penstock.ops.bench.common.processes import ProcessFailed
from penstock.ops.bench.common.runs import RESULTS, Run, begin, finite, keep
from penstock.ops.bench.common.setup import Setup
from penstock.ops.bench.common.tables import Table
from penstock.ops.demo.demo_model import ModelUnavailable, model_directory
from penstock.ops.kafka import BrokerError

CORES = 2
MIN_SCALE = 0.5  # of a run that is kept by default

Details = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PartSuite:
    """A folder of ops.bench with a module for each part."""

    name: str  # of its folder of kept runs
    parts: Mapping[str, str]  # part -> module:function, imported when it runs: torch takes seconds
    tables: Mapping[str, Table]
    scale_help: str

    def parser(self, description: str) -> argparse.ArgumentParser:
        """Arguments that every suite takes: parts, `--scale` and `--output`."""
        program = f"python -m penstock.ops.bench.{self.name}"
        parser = argparse.ArgumentParser(prog=program, description=description)
        parser.add_argument(
            "parts", nargs="*", choices=[*self.parts, []], help=f"any of {', '.join(self.parts)}; default: all"
        )
        parser.add_argument("--scale", type=float, default=1.0, help=self.scale_help)
        parser.add_argument(
            "--output",
            type=Path,
            metavar="DIR",
            help="folder of kept runs; default for whole runs: ops/bench/results, for others: not kept",
        )
        return parser

    def run(self, arguments: argparse.Namespace, before: str | None = None) -> int:
        """Run what the arguments of `parser` ask for. Exit code: 0; 1 if something could not be run.

        `before`: see `Setup`.
        """
        console = Console(width=max(160, Console().width))
        for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
            del os.environ[name]  # settings of a real cluster
        use_cores(CORES)
        machine = describe_machine()
        logs = Path(tempfile.mkdtemp(prefix="penstock-bench-"))  # stays, for the reader
        console.print(f"{title(machine)}; logs in {logs}")
        header = begin(self.name, machine)
        try:
            setup = Setup(model_directory(), logs, len(machine["cores_used"]), arguments.scale, before)
            parts = {part: self._run_part(console, part, setup) for part in arguments.parts or self.parts}
        except (BrokerError, ModelUnavailable, ProcessFailed) as error:
            console.print(str(error), style="red", markup=False)
            return 1
        record = finite({**header, "scale": arguments.scale, "parts": parts})
        self._show(console, record)
        root = arguments.output or (RESULTS if arguments.scale >= MIN_SCALE and not arguments.parts else None)
        if root is None:
            console.print(f"Not kept: this is no whole run of scale {MIN_SCALE:g} or more. --output DIR keeps any run.")
        else:
            console.print(f"Written to {keep(record, root)}")
        return 0

    def _run_part(self, console: Console, part: str, setup: Setup) -> dict[str, Details]:
        module, function = self.parts[part].split(":")
        started = time.monotonic()
        with console.status(f"{part} ..."):
            run: Callable[[Setup], Details] = getattr(import_module(module), function)
            details = run(setup)
        console.print(f"{part}: {time.monotonic() - started:.0f} s")
        if "not_applicable" in details:
            console.print(f"Not applicable: {details['not_applicable']}.")
        return {"details": details}

    def _show(self, console: Console, record: Mapping[str, Any]) -> None:
        run = Run(Path(), record)
        for name, table in self.tables.items():
            if text := table.of_runs([run]):
                console.rule(name)
                console.print(Markdown(text))
