"""The step engine's frame on the CPU: every batch runs within `start`."""

import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from penstock.engine.cells.batch_checks import BatchCheck
from penstock.engine.cells.contract import Cell, CellBatch, CellOutput, CellSpec
from penstock.engine.cells.cpu import FinishedCells
from penstock.engine.gpu.buckets import row_bucket
from penstock.engine.gpu.cells.cell_batches import CellLayout
from penstock.engine.gpu.cells.device_states import DeviceStates
from penstock.engine.gpu.cells.lstm import LstmCell
from penstock.engine.gpu.cells.step_engine import quantum_of


class HostEngine:
    """Implements StepEngine by the frame of `GpuStepEngine`, without its stream and its graphs."""

    def __init__(self, cells: Sequence[Cell | LstmCell], num_slots: int) -> None:
        self.num_slots = num_slots
        self.cells: Mapping[str, CellSpec] = {cell.spec.name: cell.spec for cell in cells}
        self._pool = DeviceStates(self.cells.values(), num_slots, torch.device("cpu"))
        self._quanta = {cell.spec.name: quantum_of(cell, self._pool) for cell in cells}
        self._check = BatchCheck(num_slots)

    def idle(self) -> bool:
        """See `StepEngine.idle`."""
        return False

    @torch.inference_mode()
    def start(self, batch: CellBatch) -> FinishedCells:
        """Run a batch."""
        started = time.perf_counter()
        spec, quantum = self.cells[batch.cell], self._quanta[batch.cell]
        self._check(batch, spec)
        layout = CellLayout(spec, row_bucket(len(batch.steps)), batch.quantum, quantum.input_sizes)
        described = np.full(layout.num_described, -7, np.int32)  # what is not written is seen
        layout.describe(batch, self._pool.scratch, described)
        results = torch.zeros(layout.num_results, dtype=torch.int32)
        quantum.launch(layout.views(torch.from_numpy(described), results))
        ran, stopped, emitted = layout.results(results.numpy(), len(batch.steps))
        if not layout.has_results:
            ran, stopped = batch.steps.copy(), np.zeros_like(batch.steps)
        return FinishedCells(CellOutput(emitted, ran, stopped.astype(np.bool_), time.perf_counter() - started))
