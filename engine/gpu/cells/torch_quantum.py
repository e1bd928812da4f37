"""Steps of any cell by its torch code, in the frame that batches of cells share: gather, steps, scatter."""

from collections.abc import Mapping

import torch
from torch import Tensor

from penstock.engine.cells.contract import Cell
from penstock.engine.gpu.cells.cell_batches import NO_SIZES, DeviceBatch
from penstock.engine.gpu.cells.device_states import DeviceStates


class TorchQuantum:
    """Runs a cell's `step`. Everything it does may be captured in a CUDA graph if the step may.

    A cell of torch code does not say which inputs it takes; the caller has checked them.
    """

    input_sizes = NO_SIZES

    def __init__(self, cell: Cell, pool: DeviceStates) -> None:
        """ValueError for a cell of several predecessors that asks for chains of more than one step."""
        if cell.spec.arity > 1 and cell.spec.max_steps > 1:
            raise ValueError(f"{cell.spec.name} reads {cell.spec.arity} slots, so its max_steps must be 1.")
        self._cell = cell
        self._pool = pool

    def launch(self, batch: DeviceBatch) -> None:
        """Queue the steps of a batch, its writes to the pool, and its results."""
        spec, pool = self._cell.spec, self._pool
        first_read, rows = batch.read[:, 0], len(batch.steps)
        states: Mapping[str, Tensor] = {state.name: self._gather(pool.states[state], batch) for state in spec.states}
        stopped = (pool.stopped[spec.name].index_select(0, first_read) != 0) & (batch.is_first == 0)
        last = {
            emission: pool.emitted[spec.name, emission].index_select(0, first_read)
            for emission in spec.feedback.values()
        }
        ran = torch.zeros(rows, dtype=torch.int32, device=batch.steps.device)
        for step in range(batch.quantum):
            is_active = (batch.steps > step) & ~stopped
            new, emitted = self._cell.step(states, self._inputs(batch, step, is_active, last))
            new = {state.name: new[state.name].to(state.dtype) for state in spec.states}
            if step > 0:  # a row without even a first step writes nothing, so its states do not matter
                new = {name: torch.where(is_active[:, None], new[name], old) for name, old in states.items()}
            states = new
            for name, values in batch.emitted.items():
                values[:, step].copy_(emitted[name])
            last = {name: torch.where(is_active, _token(emitted[name]), old) for name, old in last.items()}
            ran += is_active
            for name, value in spec.stop.items():
                stopped = stopped | (is_active & (_token(emitted[name]) == value))
        self._scatter(batch, states, stopped, last, ran)

    def _gather(self, pool: Tensor, batch: DeviceBatch) -> Tensor:
        rows, arity = batch.read.shape
        gathered = pool.index_select(0, batch.read.reshape(-1))
        return gathered if arity == 1 else gathered.view(rows, arity, -1)

    def _inputs(
        self, batch: DeviceBatch, step: int, is_active: Tensor, last: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """The inputs of a step; 0 in rows that do not run it."""
        inputs = {}
        for name, values in batch.inputs.items():
            emission = self._cell.spec.feedback.get(name)
            given = values[step]
            if emission is not None:
                given = torch.where(batch.is_first != 0, given, last[emission]) if step == 0 else last[emission]
            inputs[name] = given.masked_fill(~is_active, 0)
        return inputs

    def _scatter(
        self,
        batch: DeviceBatch,
        states: Mapping[str, Tensor],
        stopped: Tensor,
        last: Mapping[str, Tensor],
        ran: Tensor,
    ) -> None:
        """Write to the pool and to the results. Rows that ran nothing keep their states, but pass on their marks."""
        spec, pool = self._cell.spec, self._pool
        write = batch.write.long()
        target = write.masked_fill(ran == 0, pool.scratch)
        for state in spec.states:
            pool.states[state].index_copy_(0, target, states[state.name])
        flags = stopped.int()
        pool.stopped[spec.name].index_copy_(0, write, flags)
        for name, values in last.items():
            pool.emitted[spec.name, name].index_copy_(0, write, values)
        batch.ran.copy_(ran)
        batch.stopped.copy_(flags)


def _token(emission: Tensor) -> Tensor:
    """The first value of each row, as an input of the next step."""
    return emission.reshape(len(emission), -1)[:, 0].int()
