"""A step engine whose device is a model of its time: the host does its own work, and waits as for a GPU."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from penstock.engine.cells.contract import CellBatch, CellOutput, CellSpec
from penstock.engine.cells.steps.batch_checks import BatchCheck
from penstock.engine.gpu.cells.cell_batches import CellLayout
from penstock.engine.gpu.row_buckets import row_bucket
from penstock.ops.bench.cellular.loads.load import Clock
from penstock.ops.bench.cellular.loads.null_engine import NullEngine

Seconds = Callable[[str, int, int], float]  # of a task on the device, by cell, rows and quantum


class SimulatedEngine:
    """Implements StepEngine. Batches run one after another, each as long as `seconds` says, and emit zeros.

    The host checks and describes a batch as for a GPU, and is kept for `launch_s` in place of the driver's calls.
    """

    def __init__(
        self, specs: Sequence[CellSpec], num_slots: int, seconds: Seconds, launch_s: float, clock: Clock
    ) -> None:
        self._null = NullEngine(specs, num_slots)
        self.cells: Mapping[str, CellSpec] = self._null.cells
        self.num_slots = num_slots
        self._seconds, self._launch_s, self._clock = seconds, launch_s, clock
        self._check = BatchCheck(num_slots)
        self._layout = cache(lambda cell, rows, quantum: CellLayout(self.cells[cell], rows, quantum))
        self._free_at = 0.0

    def idle(self) -> bool:
        """See `StepEngine.idle`."""
        return False

    def start(self, batch: CellBatch) -> "SimulatedRun":
        """See `StepEngine.start`."""
        spec, rows = self.cells[batch.cell], len(batch.steps)
        self._check(batch, spec)
        layout = self._layout(spec.name, row_bucket(rows), batch.quantum)
        layout.describe(batch, 0, np.empty(layout.num_described, np.int32))
        self._clock.wait_until(self._clock.now() + self._launch_s)
        device_s = self._seconds(batch.cell, rows, batch.quantum)
        self._free_at = max(self._clock.now(), self._free_at) + device_s
        return SimulatedRun(self._null.output(batch, device_s), self._free_at, self._clock)


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A batch that the device works on until a moment."""

    output: CellOutput
    ends: float
    clock: Clock

    def result(self) -> CellOutput:
        """See `RunningCells.result`."""
        self.clock.wait_until(self.ends)
        return self.output
