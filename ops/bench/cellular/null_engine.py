"""A step engine that computes nothing: what remains is the host's work for each task and request."""

from collections.abc import Mapping, Sequence

import numpy as np

from penstock.engine.cells.contract import CellBatch, CellOutput, CellSpec
from penstock.engine.cells.cpu import Emissions, FinishedCells


class NullEngine:
    """Implements StepEngine. Every step emits zeros, takes no time, and no chain stops early."""

    def __init__(self, specs: Sequence[CellSpec], num_slots: int) -> None:
        self.cells: Mapping[str, CellSpec] = {spec.name: spec for spec in specs}
        self.num_slots = num_slots

    def idle(self) -> bool:
        """See `StepEngine.idle`."""
        return False

    def start(self, batch: CellBatch) -> FinishedCells:
        """See `StepEngine.start`."""
        return FinishedCells(self.output(batch, 0.0))

    def output(self, batch: CellBatch, device_s: float) -> CellOutput:
        """Of a batch, after so long."""
        rows = len(batch.steps)
        emitted: dict[str, Emissions] = {}
        for emission in self.cells[batch.cell].emits:
            bits = np.zeros((rows, batch.quantum, emission.width), np.int32)
            emitted[emission.name] = bits.view(np.float32) if emission.dtype.is_floating_point else bits
        return CellOutput(emitted, batch.steps.copy(), np.zeros(rows, np.bool_), device_s)
