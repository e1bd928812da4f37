"""What the parts of the pipeline share: the options of the run, its model, and the model's fleet."""

import os
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.part_bench import PartBench
from penstock.ops.bench.contestants.worker_fleet import FleetSpec
from penstock.ops.bench.load.load_bench import Record
from penstock.ops.bench.load.loads import Load
from penstock.ops.bench.load.payloads import max_tokens
from penstock.ops.bench.pipeline.fleet_bench import Around, FleetBench, open_fleet
from penstock.ops.bench.pipeline.pipeline_loads import NULL, NULL_WORKER, SCALES, Scale, closed_loads
from penstock.ops.bench.pipeline.run_facts import checkpoint, prepared

_MAX_CLIENTS = 32


class PipelineBench(PartBench):
    """The fleet is opened for the first part that asks for it, and closed before another one is."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-bench-"))  # stays, for the reader
        print(f"logs in {self.folder}", flush=True)
        found = prepared(options["model"], self.folder)
        self._machine: Record = found["machine"]
        self.device = "cuda" if found["gpus"] else "cpu"
        self.model = checkpoint(found["model"])
        self.sizes: Scale = SCALES[NULL if self.model is None else self.device]
        self.warm_s, self.seconds = float(options["warm_s"]), float(options["seconds"])
        self.worker_args: Sequence[str] = shlex.split(options["worker_args"])
        self.saturated: dict[str, float] = {}  # requests a second of closed loops so far, by their names
        clients = options["clients"] or min(_MAX_CLIENTS, max(1, len(os.sched_getaffinity(0)) // 2))
        self._around = Around(self.folder, options["brokers"], clients, self.warm_s, self.seconds)
        self._stack = ExitStack()
        self._fleet: tuple[FleetBench, Record] | None = None

    def machine(self) -> Record:
        """See `PartBench.machine`."""
        return self._machine

    def close(self) -> None:
        """See `PartBench.close`. The fleet alone: a part may open another one afterwards."""
        self._fleet = None
        self._stack.close()

    @property
    def fleet(self) -> FleetBench:
        """That of the model, warm."""
        return self._opened()[0]

    def described_fleet(self) -> Record:
        """How the model's fleet came up, and the batches of all its loads so far."""
        fleet, described = self._opened()
        return {**described, "batches": fleet.batches()}

    def other_fleet(
        self, name: str, spec: FleetSpec, model: Path | None
    ) -> AbstractContextManager[tuple[FleetBench, Record]]:
        """A fleet of a part's own, once the model's is closed."""
        self.close()
        return open_fleet(self._around, name, spec, model)

    def closed_loads(self) -> list[Load]:
        """Those that the model takes."""
        longest, has_texts = max_tokens(self.model), self.model is not None
        return closed_loads(self.sizes, self.warm_s, self.seconds, max_tokens=longest, texts=has_texts)

    def saturation(self, name: str) -> float:
        """Requests a second of a closed loop; measured now if part `closed` has not run."""
        if name not in self.saturated:
            load = next(load for load in self.closed_loads() if load.name == name)
            self.saturated[name] = float(self.fleet.offer(load)["requests_per_s"])
        return self.saturated[name]

    def _opened(self) -> tuple[FleetBench, Record]:
        if self._fleet is None:
            arguments = self.worker_args if self.model is not None else (*NULL_WORKER, *self.worker_args)
            model = NULL if self.model is None else str(self.model)
            spec = FleetSpec(model, arguments, self.options["commands"], self.options["members"])
            self._fleet = self._stack.enter_context(open_fleet(self._around, "fleet", spec, self.model))
            self._fleet[0].warm_up(self.closed_loads()[0])
        return self._fleet
