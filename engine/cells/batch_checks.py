"""Checks of a batch of cells, and of a cell's step, before they touch the pool."""

import numpy as np
import torch

from penstock.engine.cells.contract import Cell, CellBatch, CellSpec, StateSpec, Tensors
from penstock.engine.cells.errors import InvalidCell
from penstock.engine.cells.kernels.batch_kernels import OF_POOL, OF_READS, OF_STEPS, OF_WRITERS
from penstock.engine.cells.kernels.compiled import load_kernels
from penstock.engine.cells.node_table import NONE
from penstock.engine.errors import InvalidBatch


class BatchCheck:
    """Raises InvalidBatch for what would read or write outside of the pool, or race."""

    def __init__(self, num_slots: int) -> None:
        self._writer = np.full(num_slots, NONE, np.int32)  # row that writes a slot, within one call
        self._kernels = load_kernels()

    def __call__(self, batch: CellBatch, spec: CellSpec) -> None:
        rows, quantum = len(batch.steps), batch.quantum
        if not 1 <= rows <= spec.max_rows or not 1 <= quantum <= spec.max_steps:
            raise InvalidBatch(
                f"{rows} rows of {quantum} steps; cell {spec.name!r} has 1 to {spec.max_rows} of 1 to {spec.max_steps}."
            )
        are_shaped = batch.read.shape == (rows, spec.arity) and batch.write.shape == batch.is_first.shape == (rows,)
        for name in spec.inputs:
            are_shaped = are_shaped and name in batch.inputs and batch.inputs[name].shape == (rows, quantum)
        if not are_shaped:
            raise InvalidBatch(f"the arrays of a batch of {spec.name!r} do not agree on {rows} rows, {quantum} steps.")
        fault = self._kernels.find_fault(batch.read, batch.write, batch.steps, quantum, self._writer)
        if fault == OF_STEPS:
            raise InvalidBatch(f"a row of {spec.name!r} has steps outside of [1, {quantum}].")
        if fault == OF_POOL:
            raise InvalidBatch(f"a slot is outside of the pool of {len(self._writer)}.")
        if fault == OF_READS:
            raise InvalidBatch("a row reads a negative slot.")
        if fault == OF_WRITERS:
            raise InvalidBatch("a row writes a slot that another row reads or writes.")


def require_runnable(cell: Cell) -> None:
    """Run a step of two rows of zeros. Raises InvalidCell unless it returns what the specification declares."""
    spec, rows = cell.spec, 2
    shape = (rows,) if spec.arity == 1 else (rows, spec.arity)
    states = {state.name: torch.zeros(*shape, state.width, dtype=state.dtype) for state in spec.states}
    try:
        new, emitted = cell.step(states, {name: torch.zeros(rows, dtype=torch.int32) for name in spec.inputs})
    except Exception as error:
        raise InvalidCell(f"cell {spec.name!r} cannot run a step of zeros: {error!r}.") from error
    require_declared(spec, new, emitted, rows)


def require_declared(spec: CellSpec, new: Tensors, emitted: Tensors, rows: int) -> None:
    """Raise InvalidCell unless a step of so many rows has returned what the specification declares."""
    _require_declared(spec.name, "state", spec.states, new, rows)
    _require_declared(spec.name, "emission", spec.emits, emitted, rows)


def _require_declared(cell: str, kind: str, declared: tuple[StateSpec, ...], found: Tensors, rows: int) -> None:
    for one in declared:
        if one.name not in found:
            raise InvalidCell(f"cell {cell!r} declares {kind} {one.name!r}, but its step does not return it.")
        tensor = found[one.name]
        if tuple(tensor.shape) != (rows, one.width) or tensor.dtype != one.dtype:
            raise InvalidCell(
                f"cell {cell!r} declares {kind} {one.name!r} as [rows, {one.width}] of {one.dtype}; "
                f"its step returned {list(tensor.shape)} of {tensor.dtype} for {rows} rows."
            )
