"""Batches of cells that an engine did not start, or that hold rows of a batch that was lost: run in parts."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import structlog

from penstock.engine.cells.contract import NO_SLOT, CellBatch, CellOutput, CellSpec, Int32Array, StepEngine
from penstock.engine.cells.emissions import no_values
from penstock.engine.cells.errors import CellFailed
from penstock.engine.errors import DeviceFailed, EngineError
from penstock.worker.stepping.isolation import StepIsolation, StepWork

log = structlog.get_logger("penstock.dispatcher")


class LostRow(CellFailed):
    """A row of a batch that started and has no result: its state is undefined, and its request must begin again."""

    def __init__(self, message: str, num_rows: int) -> None:
        super().__init__(message)
        self.num_rows = num_rows  # of the batch that was lost


class IsolatedCells:
    """Implements `RunningCells` for a batch of which nothing has run.

    A row that fails alone is blamed if a probe, a step of zeros into the row's own slot, runs. If not, the engine is at
    fault. No other batch is started before `result` has returned, since rows may depend on this one.
    """

    def __init__(
        self, engine: StepEngine, batch: CellBatch, isolation: StepIsolation, most_rows: int, error: Exception | None
    ) -> None:
        """`most_rows`: that run together. `error`: that `start` raised for the whole batch; None: it was not called."""
        self._engine = engine
        self._spec = engine.cells[batch.cell]
        self._batch = batch
        self._isolation = isolation
        self._most_rows = most_rows
        self._error = error
        self._parts: list[tuple[Sequence[int], CellOutput]] = []

    def result(self) -> CellOutput:
        """Run the rows. Raises the engine's error where it fails on any input."""
        rows, work = range(len(self._batch.steps)), StepWork(self._run, self._judge)
        for first in range(0, len(rows), self._most_rows):
            self._isolation.run(rows[first : first + self._most_rows], work, self._error)
        return _joined(self._parts)

    def _run(self, rows: Sequence[int]) -> None:
        part = _part(self._batch, rows)
        running = self._engine.start(part)
        try:
            output = running.result()
        except DeviceFailed:
            raise
        except Exception as error:
            if len(rows) == 1:
                self._isolation.count(rows[0])
                self._judge(rows[0], error)
                return
            output = lost_output(self._spec, part, error)
        self._parts.append((rows, output))

    def _judge(self, row: int, error: Exception) -> None:
        """One row failed alone, and no other batch is underway. Raises the engine's error where a probe fails too."""
        part = _part(self._batch, [row])
        _probe(self._engine, part)
        self._parts.append(([row], _failed_output(self._spec, part, _failure(self._spec, error))))


def lost_output(spec: CellSpec, batch: CellBatch, error: Exception) -> CellOutput:
    """The output of a batch that started and raised: its states are undefined, and each row is a `LostRow`."""
    num_rows = len(batch.steps)
    log.warning("steps_lost", rows=num_rows, error=repr(error))
    return _failed_output(spec, batch, LostRow(f"a batch of {num_rows} rows was lost: {error!r}", num_rows))


def _probe(engine: StepEngine, batch: CellBatch) -> None:
    """Run a step of zeros in place of a batch of one row, by what runs a quantum of this length."""
    probe = replace(
        batch,
        read=np.full_like(batch.read, NO_SLOT),
        inputs={name: np.zeros_like(values) for name, values in batch.inputs.items()},
        steps=np.ones(1, np.int32),
        is_first=np.ones(1, np.bool_),
    )
    engine.start(probe).result()


def _failure(spec: CellSpec, error: Exception) -> CellFailed:
    failure = CellFailed(f"the engine failed on cell {spec.name!r}: {error!r}")
    failure.__cause__ = error
    return failure


def _failed_output(spec: CellSpec, batch: CellBatch, failure: EngineError) -> CellOutput:
    """The output of a batch of which all rows failed."""
    num_rows = len(batch.steps)
    emitted = {emission.name: no_values(emission, num_rows, batch.quantum) for emission in spec.emits}
    nothing, all_stopped = np.zeros(num_rows, np.int32), np.ones(num_rows, np.bool_)
    return CellOutput(emitted, nothing, all_stopped, 0.0, dict.fromkeys(range(num_rows), failure))


def _part(batch: CellBatch, rows: Sequence[int]) -> CellBatch:
    index = np.array(rows)
    inputs: dict[str, Int32Array] = {name: values[index] for name, values in batch.inputs.items()}
    return CellBatch(
        batch.cell,
        batch.read[index],
        batch.write[index],
        inputs,
        batch.steps[index],
        batch.is_first[index],
        batch.quantum,
    )


def _joined(parts: Sequence[tuple[Sequence[int], CellOutput]]) -> CellOutput:
    """The outputs of parts, in the order of their rows."""
    order = np.argsort(np.concatenate([rows for rows, _ in parts]))
    outputs = [output for _, output in parts]
    failed = {rows[row]: error for rows, output in parts for row, error in output.failed.items()}
    return CellOutput(
        {name: np.concatenate([one.emitted[name] for one in outputs])[order] for name in outputs[0].emitted},
        np.concatenate([one.steps for one in outputs])[order],
        np.concatenate([one.is_stopped for one in outputs])[order],
        sum([one.device_s for one in outputs]),
        failed,
    )
