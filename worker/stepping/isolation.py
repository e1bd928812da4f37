"""Batches of cells that an engine did not start: run in halves, until the rows at fault are alone."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from penstock.engine.cells.contract import NO_SLOT, CellBatch, CellOutput, CellSpec, Int32Array, StepEngine
from penstock.engine.cells.emissions import no_values
from penstock.engine.cells.errors import CellFailed
from penstock.engine.errors import DeviceFailed, EngineError


class IsolatedCells:
    """Implements `RunningCells` for a batch of which `start` raised: nothing of it has run.

    A row that fails alone is blamed if a probe, a step of zeros into the row's own slot, runs. If not, the engine is at
    fault. No other batch is started before `result` has returned, since rows may depend on this one.
    """

    def __init__(self, engine: StepEngine, batch: CellBatch, error: Exception) -> None:
        self._engine = engine
        self._spec = engine.cells[batch.cell]
        self._batch = batch
        self._error = error

    def result(self) -> CellOutput:
        """Run the rows. Raises the engine's error where it fails on any input."""
        return self._split(self._batch, self._error)

    def _split(self, batch: CellBatch, error: Exception) -> CellOutput:
        num_rows = len(batch.steps)
        if num_rows == 1:
            self._probe(batch)
            return failed_output(self._spec, batch, error)
        rows = np.arange(num_rows)
        return _joined([self._run(_part(batch, half)) for half in (rows[: num_rows // 2], rows[num_rows // 2 :])])

    def _run(self, batch: CellBatch) -> CellOutput:
        try:
            return self._engine.start(batch).result()
        except DeviceFailed:
            raise
        except Exception as error:  # of the engine, on some of these rows
            return self._split(batch, error)

    def _probe(self, batch: CellBatch) -> None:
        probe = replace(
            batch,
            read=np.full_like(batch.read, NO_SLOT),
            inputs={name: np.zeros((1, 1), np.int32) for name in batch.inputs},
            steps=np.ones(1, np.int32),
            is_first=np.ones(1, np.bool_),
            quantum=1,
        )
        self._engine.start(probe).result()


def failed_output(spec: CellSpec, batch: CellBatch, error: Exception) -> CellOutput:
    """The output of a batch of which all rows failed."""
    num_rows = len(batch.steps)
    emitted = {emission.name: no_values(emission, num_rows, batch.quantum) for emission in spec.emits}
    failure: EngineError = CellFailed(f"the engine failed on cell {spec.name!r}: {error!r}")
    failure.__cause__ = error
    nothing, all_stopped = np.zeros(num_rows, np.int32), np.ones(num_rows, np.bool_)
    return CellOutput(emitted, nothing, all_stopped, 0.0, dict.fromkeys(range(num_rows), failure))


def _part(batch: CellBatch, rows: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> CellBatch:
    inputs: dict[str, Int32Array] = {name: values[rows] for name, values in batch.inputs.items()}
    return CellBatch(
        batch.cell,
        batch.read[rows],
        batch.write[rows],
        inputs,
        batch.steps[rows],
        batch.is_first[rows],
        batch.quantum,
    )


def _joined(parts: Sequence[CellOutput]) -> CellOutput:
    firsts = np.cumsum([0, *[len(part.steps) for part in parts]]).tolist()
    return CellOutput(
        {name: np.concatenate([part.emitted[name] for part in parts]) for name in parts[0].emitted},
        np.concatenate([part.steps for part in parts]),
        np.concatenate([part.is_stopped for part in parts]),
        sum([part.device_s for part in parts]),
        {first + row: error for first, part in zip(firsts, parts, strict=False) for row, error in part.failed.items()},
    )
