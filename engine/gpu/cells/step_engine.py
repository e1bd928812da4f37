"""The step engine on a GPU: batches of cells on one stream, each a CUDA graph, and results copied back in one piece."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.engine.cells.batch_checks import BatchCheck
from penstock.engine.cells.contract import Cell, CellBatch, CellOutput, CellSpec, Int32Array
from penstock.engine.errors import InvalidBatch
from penstock.engine.gpu.buckets import quanta, row_bucket, row_buckets
from penstock.engine.gpu.cells.cell_batches import CellLayout, DeviceBatch
from penstock.engine.gpu.cells.device_states import DeviceStates
from penstock.engine.gpu.cells.lstm import LstmCell, LstmQuantum
from penstock.engine.gpu.cells.torch_quantum import TorchQuantum
from penstock.engine.gpu.faults import DeviceFaults
from penstock.engine.gpu.graphs import Graphs, Work
from penstock.engine.gpu.pinned import Landing, Landings, UploadRing


class Quantum(Protocol):
    """The work of a batch of one cell on the device."""

    @property
    def input_sizes(self) -> Mapping[str, int]:
        """Inputs that index a table: their values lie in [0, size)."""
        ...

    def launch(self, batch: DeviceBatch) -> None:
        """Queue it. Depends on the batch only through its shape and through memory at fixed addresses."""
        ...


class GraphKey(NamedTuple):
    """Facts that a captured graph fixes."""

    cell: str
    rows: int
    quantum: int


class _Form(NamedTuple):
    """How batches of one key lie in memory, and their work."""

    layout: CellLayout
    work: Work


def quantum_of(cell: Cell | LstmCell, pool: DeviceStates) -> Quantum:
    """The fused kernels for an LSTM, and a cell's own torch code for any other."""
    return LstmQuantum(cell, pool) if isinstance(cell, LstmCell) else TorchQuantum(cell, pool)


class GpuStepEngine:
    """Implements `penstock.engine.cells.contract.StepEngine`. One thread starts batches; another may wait for them.

    All batches share one description and one results buffer on the device, for they run in the order of one stream. So
    the graphs hold fixed addresses, and one graph serves each key.
    """

    def __init__(
        self, cells: Sequence[Cell | LstmCell], num_slots: int, *, device: torch.device | str = "cuda"
    ) -> None:
        """num_slots: NO_SLOT included. The cells' weights lie on the device already."""
        self._pool = DeviceStates((cell.spec for cell in cells), num_slots, torch.device(device))
        self.device = next(iter(self._pool.stopped.values())).device  # "cuda" with its index
        self._cells = {cell.spec.name: cell.spec for cell in cells}
        self._quanta = {cell.spec.name: quantum_of(cell, self._pool) for cell in cells}
        self._check = BatchCheck(num_slots)
        largest = [CellLayout(spec, row_bucket(spec.max_rows), spec.max_steps) for spec in self._cells.values()]
        self._description = self._int32(max(layout.num_described for layout in largest))
        self._results = self._int32(max(layout.num_results for layout in largest))
        self._form = lru_cache(maxsize=4096)(self._make_form)
        self._stream: torch.cuda.Stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]  # torch
        # The pool was cleared on the current stream; nothing else orders this one after it.
        self._stream.wait_stream(torch.cuda.current_stream(self.device))
        self._uploads = UploadRing(self.device)
        self._landings = Landings()
        self._graphs: Graphs[GraphKey] = Graphs(self.device)
        self._faults = DeviceFaults(lambda: torch.cuda.synchronize(self.device))

    @property
    def cells(self) -> Mapping[str, CellSpec]:
        """Specifications by name."""
        return self._cells

    @property
    def num_slots(self) -> int:
        """Slots of the pool, NO_SLOT included."""
        return self._pool.num_slots

    def start(self, batch: CellBatch) -> "RunningQuantum":
        """See `StepEngine.start`. Raises DeviceFailed from the device's first failure on.

        Leaves the engine's stream the calling thread's current one: a switch there and back costs every batch time.
        """
        self._faults.require_sound()
        if batch.cell not in self._cells:
            raise InvalidBatch(f"cell {batch.cell!r} is not one of {sorted(self._cells)}")
        self._check(batch, self._cells[batch.cell])
        try:
            torch.cuda.set_stream(self._stream)
            return self._start(batch)
        except RuntimeError as error:
            self._faults.sort(error)

    @torch.inference_mode()
    def prepare(self, *, budget_s: float) -> None:
        """Capture the graphs of all cells, row buckets and quanta. Called at load."""
        until = time.perf_counter() + budget_s
        with self._faults.sorted(), torch.cuda.stream(self._stream):
            for key in self._likely_keys():
                if time.perf_counter() > until:
                    break
                self._prepare(key)

    @property
    def is_capture_due(self) -> bool:
        """Whether `capture_next` has a graph to capture."""
        return self._graphs.is_due

    def idle(self) -> bool:
        """See `StepEngine.idle`: captures a graph. An error of the device appears again in the next batch."""
        if self._faults.has_failed or not self.is_capture_due:
            return False
        with contextlib.suppress(RuntimeError):
            self.capture_next()
        return True

    @torch.inference_mode()
    def capture_next(self) -> bool:
        """Capture one graph that two batches have missed. Returns whether one was. Called with no batch waiting."""
        with torch.cuda.stream(self._stream):
            return self._graphs.capture_next(lambda key: self._form(key).work)

    @property
    def num_graphs(self) -> int:
        """Graphs captured so far."""
        return len(self._graphs)

    def _start(self, batch: CellBatch) -> "RunningQuantum":
        key = GraphKey(batch.cell, row_bucket(len(batch.steps)), batch.quantum)
        layout, work = self._form(key)
        self._upload(layout, batch)
        landing = self._landings.take()
        landing.started.record(self._stream)  # behind the upload: an idle device waits for the host's description
        self._graphs.run(key, work)
        fetched = None
        if layout.has_results:
            fetched = landing.fetch({key: self._results[: layout.num_results].view(torch.float32)})[key]
        landing.end(self._stream, is_brief=True)
        return RunningQuantum(self, layout, batch.steps.copy(), fetched, landing)

    def _upload(self, layout: CellLayout, batch: CellBatch | None) -> None:
        values = self._uploads.buffer(layout.num_described)
        layout.describe(batch, self._pool.scratch, values)
        self._uploads.upload(self._description.data_ptr(), layout.num_described)

    def _prepare(self, key: GraphKey) -> None:
        """Capture a graph, after its kernels have run on spare rows: no module can be loaded during a capture."""
        layout, work = self._form(key)
        self._upload(layout, None)
        work()
        self._graphs.capture(key, work)

    def _likely_keys(self) -> list[GraphKey]:
        """Short quanta first: of all cells, should the time not suffice for the long ones."""
        keys = [
            GraphKey(name, rows, quantum)
            for name, spec in self._cells.items()
            for quantum in quanta(spec.max_steps)
            for rows in row_buckets(spec.max_rows)
        ]
        return sorted(keys, key=attrgetter("quantum"))

    def _make_form(self, key: GraphKey) -> _Form:
        quantum = self._quanta[key.cell]
        layout = CellLayout(self._cells[key.cell], key.rows, key.quantum, quantum.input_sizes)
        views = layout.views(self._description, self._results)

        @torch.inference_mode()
        def work() -> Tensor:
            quantum.launch(views)
            return self._results

        return _Form(layout, work)

    def _int32(self, count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.int32, device=self.device)


@dataclass(slots=True)  # not frozen: that would cost each batch a microsecond
class RunningQuantum:
    """A batch of cells that the device works on."""

    _engine: GpuStepEngine
    _layout: CellLayout
    _asked: Int32Array  # steps of each row
    _fetched: Tensor | None  # the results, in `_landing`; filled once the batch's end has come
    _landing: Landing

    def result(self) -> CellOutput:
        """See `RunningCells.result`. Waits without the GIL, spinning. Raises DeviceFailed."""
        device_s = self._landing.wait(self._engine._faults)
        count = len(self._asked)
        if self._fetched is None:
            output = CellOutput({}, self._asked, np.zeros(count, np.bool_), device_s)
        else:
            ran, stopped, emitted = self._layout.results(self._fetched.numpy().view(np.int32), count)
            output = CellOutput(emitted, ran, stopped.astype(np.bool_), device_s)
        self._engine._landings.put(self._landing)
        return output
