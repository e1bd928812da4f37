"""A recording of the batches that an engine runs: how long, how full, and when each request began."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.contract import CellBatch, CellOutput, CellSpec, Int32Array, RunningCells, StepEngine

Floats = npt.NDArray[np.float64]
_NO_TOKENS = np.zeros(0, np.int32)


class RecordedBatch(NamedTuple):
    """A batch that has ended. Times are of the recording's clock."""

    begin: float  # on the device
    end: float
    cell: str
    quantum: int
    asked: Int32Array  # steps of each row; summed up after the load
    tokens: Int32Array  # the first tokens of requests that began with it


@dataclass(slots=True)
class Tape:
    """The batches of one run, in their order."""

    clock: Callable[[], float]
    batches: list[RecordedBatch] = field(default_factory=list)

    def begins(self, num_requests: int, num_firsts: Sequence[int]) -> Floats:
        """Time at which each request's first node began; NaN: it did not.

        Request i has the first token i mod len(num_firsts), in as many rows as `num_firsts` says. Of requests with the
        same token, the earlier one begins first.
        """
        begins = np.full(num_requests, np.nan)
        size = len(num_firsts)
        seen = [0] * size
        for batch in self.batches:
            for token in batch.tokens.tolist():
                request = token + seen[token] // num_firsts[token] * size
                seen[token] += 1
                if request < num_requests and begins[request] != begins[request]:
                    begins[request] = batch.begin
        return begins


class RecordingEngine:
    """Implements StepEngine over another one. The device's times are those that the engine reports.

    A batch begins when it is started, or when the one before it ends.
    """

    def __init__(self, engine: StepEngine, entry: str, tape: Tape) -> None:
        """entry: the cell of a request's first nodes."""
        self._engine, self._entry, self._tape = engine, entry, tape
        self._free_at = 0.0

    @property
    def cells(self) -> Mapping[str, CellSpec]:
        """Specifications by name."""
        return self._engine.cells

    @property
    def num_slots(self) -> int:
        """Slots of the pool."""
        return self._engine.num_slots

    def idle(self) -> bool:
        """See `StepEngine.idle`."""
        return self._engine.idle()

    def start(self, batch: CellBatch) -> "RecordedRun":
        """See `StepEngine.start`."""
        tokens = batch.inputs["token"][:, 0][batch.is_first] if batch.cell == self._entry else _NO_TOKENS
        started = self._tape.clock()
        return RecordedRun(self, batch, started, tokens, self._engine.start(batch))

    def record(self, run: "RecordedRun", output: CellOutput) -> None:
        """Called when a batch has ended, in the order of their starts."""
        batch, begin = run.batch, max(run.started, self._free_at)
        self._free_at = begin + output.device_s
        tape = self._tape.batches
        tape.append(RecordedBatch(begin, self._free_at, batch.cell, batch.quantum, batch.steps, run.tokens))


class RecordedRun(NamedTuple):
    """A batch that was started."""

    engine: RecordingEngine
    batch: CellBatch
    started: float
    tokens: Int32Array
    running: RunningCells

    def result(self) -> CellOutput:
        """See `RunningCells.result`."""
        output = self.running.result()
        self.engine.record(self, output)
        return output
