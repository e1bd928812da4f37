"""The step engine on a CPU, in plain torch."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from penstock.engine.cells.batch_checks import BatchCheck, require_declared, require_runnable
from penstock.engine.cells.contract import Cell, CellBatch, CellOutput, CellSpec, Int32Array
from penstock.engine.cells.errors import CellFailed
from penstock.engine.errors import EngineError, InvalidBatch, is_transient

Emissions = npt.NDArray[np.float32] | Int32Array


class _Rows(NamedTuple):
    """Results of some rows of a batch, before they reach the pool."""

    rows: Tensor  # [r] of the batch
    states: dict[str, Tensor]  # [r, width]
    fed: dict[str, Tensor]  # [r] input with feedback -> its next value
    emitted: dict[str, Tensor]  # [r, quantum, width]; 0 beyond a row's steps
    ran: Tensor  # [r]
    is_stopped: Tensor  # [r]


@dataclass(frozen=True, slots=True)
class FinishedCells:
    """Implements `RunningCells` for a batch that has run."""

    output: CellOutput

    def result(self) -> CellOutput:
        """See `RunningCells.result`."""
        return self.output


class CpuStepEngine:
    """Implements `penstock.engine.cells.contract.StepEngine`. `start` computes the batch and then returns.

    Rows that raise are found by halving the batch. They and rows that emit NaN or infinity fail alone, and leave their
    slots undefined. An error that may pass, such as a lack of memory, is raised by `start`, and nothing has changed.
    """

    def __init__(self, cells: Sequence[Cell], num_slots: int, *, threads: int = 1) -> None:
        """threads: CPU threads of one batch; `start` sets the calling thread's torch thread count to it.

        Raises InvalidCell for a cell whose step does not do what its specification declares.
        """
        with torch.inference_mode():
            for cell in cells:
                require_runnable(cell)
        self._cells = {cell.spec.name: cell for cell in cells}
        self._specs = {cell.spec.name: cell.spec for cell in cells}
        self._num_slots = num_slots
        self._threads = threads
        self._check = BatchCheck(num_slots)
        states = [state for cell in cells for state in cell.spec.states]
        self._pools = {state.name: torch.zeros(num_slots, state.width, dtype=state.dtype) for state in states}
        fed = {name for cell in cells for name in cell.spec.feedback}
        self._fed = {name: torch.zeros(num_slots, dtype=torch.int32) for name in fed}
        self._is_stopped = torch.zeros(num_slots, dtype=torch.bool)

    @property
    def cells(self) -> Mapping[str, CellSpec]:
        return self._specs

    @property
    def num_slots(self) -> int:
        return self._num_slots

    def idle(self) -> bool:
        """Nothing makes later batches faster."""
        return False

    @torch.inference_mode()
    def start(self, batch: CellBatch) -> FinishedCells:
        """See `StepEngine.start`."""
        if batch.cell not in self._cells:
            raise InvalidBatch(f"there is no cell {batch.cell!r}; there are {', '.join(map(repr, self._cells))}.")
        cell = self._cells[batch.cell]
        self._check(batch, cell.spec)
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        started = time.perf_counter()
        failed: dict[int, EngineError] = {}
        parts = self._run_rows(cell, batch, torch.arange(len(batch.steps)), failed)
        output = self._settle(cell.spec, batch, parts, failed)
        emitted, steps, is_stopped = output
        return FinishedCells(CellOutput(emitted, steps, is_stopped, time.perf_counter() - started, failed))

    def _run_rows(self, cell: Cell, batch: CellBatch, rows: Tensor, failed: dict[int, EngineError]) -> list[_Rows]:
        """Compute rows together, or in halves where that raises. Writes nothing to the pool, which rows still read."""
        try:
            return [self._run_steps(cell, batch, rows)]
        except Exception as error:  # of the cell's own code
            if is_transient(error):
                raise  # nothing has been written: the caller runs the batch again
            if len(rows) == 1:
                failed[int(rows[0])] = _failure(cell.spec, "raised", error)
                return []
        half = len(rows) // 2
        return [
            *self._run_rows(cell, batch, rows[:half], failed),
            *self._run_rows(cell, batch, rows[half:], failed),
        ]

    def _run_steps(self, cell: Cell, batch: CellBatch, rows: Tensor) -> _Rows:
        spec, index = cell.spec, rows.numpy()
        read = torch.from_numpy(batch.read[index])
        is_first, steps = torch.from_numpy(batch.is_first[index]), torch.from_numpy(batch.steps[index])
        states = {state.name: self._gather(state.name, read) for state in spec.states}
        fed = {name: self._fed[name].index_select(0, read[:, 0]) for name in spec.feedback}
        given = {name: torch.from_numpy(batch.inputs[name][index]) for name in spec.inputs}
        is_stopped = self._is_stopped.index_select(0, read[:, 0]) & ~is_first
        emitted = {
            emission.name: torch.zeros(len(rows), batch.quantum, emission.width, dtype=emission.dtype)
            for emission in spec.emits
        }
        ran = torch.zeros_like(steps)
        for step in range(batch.quantum):
            is_active = (steps > step) & ~is_stopped
            if not bool(is_active.any()):
                break
            inputs = {name: values[:, step] for name, values in given.items()}
            for name in spec.feedback:
                inputs[name] = torch.where(is_first, inputs[name], fed[name]) if step == 0 else fed[name]
            # The values of a row that is not active are of another step or node.
            inputs = {name: values.masked_fill(~is_active, 0) for name, values in inputs.items()}
            new, values = cell.step(states, inputs)
            require_declared(spec, new, values, len(rows))
            kept = is_active[:, None]
            # Before the first step an arity of 2 has another shape; a row without a first step is not written.
            states = {name: new[name] if step == 0 else torch.where(kept, new[name], states[name]) for name in states}
            for name, emission in emitted.items():
                emission[:, step] = torch.where(kept, values[name], 0)
            for name, source in spec.feedback.items():
                fed[name] = torch.where(is_active, values[source][:, 0], fed[name])
            for name, value in spec.stop.items():
                is_stopped = is_stopped | (is_active & (values[name][:, 0] == value))
            ran += is_active
        return _Rows(rows, states, fed, emitted, ran, is_stopped)

    def _gather(self, name: str, read: Tensor) -> Tensor:
        rows, arity = read.shape
        found = self._pools[name].index_select(0, read.reshape(-1))
        return found if arity == 1 else found.view(rows, arity, -1)

    def _settle(
        self, spec: CellSpec, batch: CellBatch, parts: Sequence[_Rows], failed: dict[int, EngineError]
    ) -> tuple[dict[str, Emissions], Int32Array, npt.NDArray[np.bool_]]:
        """Write what rows have computed to the pool and to the output's arrays; add the rows that are not finite."""
        num_rows = len(batch.steps)
        write = torch.from_numpy(batch.write).long()
        steps, is_stopped = torch.zeros(num_rows, dtype=torch.int32), torch.ones(num_rows, dtype=torch.bool)
        emitted = {
            emission.name: torch.zeros(num_rows, batch.quantum, emission.width, dtype=_host_dtype(emission.dtype))
            for emission in spec.emits
        }
        for part in parts:
            is_bad = _are_no_numbers(part)
            for row in part.rows[is_bad].tolist():
                failed[row] = _failure(spec, "computed NaN or infinity")
            good = torch.nonzero(~is_bad & (part.ran > 0))[:, 0]
            rows = part.rows[good]
            for name, values in part.states.items():
                self._pools[name].index_copy_(0, write[rows], values[good])
            for name, values in part.fed.items():
                self._fed[name].index_copy_(0, write[rows], values[good])
            self._is_stopped[write[rows]] = part.is_stopped[good]
            steps[rows] = part.ran[good]
            is_stopped[part.rows] = part.is_stopped | is_bad
            for name, values in part.emitted.items():
                emitted[name][rows] = values[good].to(emitted[name].dtype)
        return {name: values.numpy() for name, values in emitted.items()}, steps.numpy(), is_stopped.numpy()


def _are_no_numbers(part: _Rows) -> Tensor:
    """[r] rows with NaN in a state, or NaN or infinity in what they emit: a state may begin as -inf."""
    found = torch.zeros(len(part.rows), dtype=torch.bool)
    for values in part.states.values():
        if values.is_floating_point():
            found |= values.flatten(1).isnan().any(1)
    for values in part.emitted.values():
        if values.is_floating_point():
            found |= ~values.flatten(1).isfinite().all(1)
    return found & (part.ran > 0)


def _host_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype.is_floating_point else torch.int32


def _failure(spec: CellSpec, what: str, cause: Exception | None = None) -> CellFailed:
    detail = "" if cause is None else f" {cause!r}"
    error = CellFailed(f"cell {spec.name!r} {what}{detail} for this request; the other requests were not affected.")
    error.__cause__ = cause
    return error
