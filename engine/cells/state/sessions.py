"""Active requests between their batches: slots, inputs and emissions of their nodes."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.contract import CellBatch, CellOutput, CellSpec, Int32Array
from penstock.engine.cells.graphs.graph import Unfolded
from penstock.engine.cells.kernels.compiled import load_kernels
from penstock.engine.cells.state.emissions import Emitted, NodeOutput, emissions_of
from penstock.engine.cells.state.state_pool import StatePool
from penstock.engine.cells.tables.node_table import CELL, NODE, NONE, NUM_KNOWN, NUM_NODES, NUM_OPEN, NodeTable
from penstock.engine.errors import EngineError
from penstock.engine.types import Float32Array


class SessionBatch(NamedTuple):
    """A batch for the engine, and the rows of the table that it advances."""

    batch: CellBatch
    cell: int
    requests: Int32Array  # [R] their keys
    rows: Int32Array  # [R]


class Applied(NamedTuple):
    """Changes of a finished batch for the scheduler and the replies."""

    has_ended: npt.NDArray[np.bool_]  # [R] nodes that ended with this batch
    finished: Int32Array  # rows whose request's last node ended with them: its emissions are complete
    failed: Mapping[int, EngineError]  # rows that failed: nothing of their requests may run any more
    num_steps: int  # that ran, of all rows


class Results(NamedTuple):
    """Emissions of requests, as `emissions.split` takes them."""

    rows: list[Float32Array]
    has_nan: npt.NDArray[np.bool_]  # [G] an engine on a GPU does not look


class Sessions:
    """Requests from `open` to `close`. Batches are made and applied in the order in which the engine starts them.

    Used by one thread. A request's slots are all acquired when it opens, so that an open request never waits for one.
    Its key is a small number, which may be that of a later request once it is closed and has no batch underway.
    """

    def __init__(self, specs: Sequence[CellSpec], pool: StatePool) -> None:
        """specs: of the model's cell types, in the order of `Unfolded.cells`. Compiles for seconds on first use."""
        self._specs = specs
        self._pool = pool
        self._table = NodeTable(specs)
        self._kernels = load_kernels()
        emissions = emissions_of(specs)
        self._columns = np.full((len(emissions), len(specs)), NONE, np.int32)
        for row, emission in enumerate(emissions):
            for cell, spec in enumerate(specs):
                names = [emitted.name for emitted in spec.emits]
                if emission.name in names:
                    self._columns[row, cell] = self._table.first_emission + names.index(emission.name)
        self._widths = np.array([emission.width for emission in emissions], np.int32)
        self._is_float = np.array([emission.dtype == "float32" for emission in emissions], np.int32)

    @property
    def num_open(self) -> int:
        return int(self._table.counts[NUM_OPEN])

    def open(self, graphs: Sequence[Unfolded]) -> Int32Array | None:
        """Acquire the slots of requests, at least one, and store their inputs. Returns the key of each.

        None while the pool has too few free slots for all of them: nothing is opened, try again later. The graphs were
        checked. Raises GraphTooLarge for a request that needs more slots than the pool has.
        """
        table = self._table
        packed = np.frombuffer(bytearray().join([graph.packed for graph in graphs]), np.int32)
        num_values, needed = np.empty(len(graphs), np.int32), np.empty(4, np.int32)
        wrong = self._kernels.measure(
            packed, table.inputs, table.widths, table.arity, table.num_inputs, num_values, needed
        )
        if wrong != NONE:
            raise ValueError(f"request {wrong} was not checked for this model. This is a bug.")
        num_nodes, num_elements, num_slots, num_references = needed.tolist()
        acquired = self._pool.acquire(num_slots)
        if acquired is None:
            for graph in graphs:
                graph.require_slots(self._pool.num_slots - 1)
            return None
        table.reserve(len(graphs), num_nodes, num_elements)
        keys, forked = np.empty(len(graphs), np.int32), np.empty(num_references, np.int32)
        self._kernels.open_requests(
            packed, table.inputs, table.widths, num_values, acquired, table.nodes, table.slots, table.places,
            table.values, table.requests, table.counts, keys, forked
        )  # fmt: skip
        if num_references:
            self._pool.fork(forked)
        return keys

    def batch(self, cell: int, keys: Int32Array, nodes: Int32Array, steps: Int32Array, quantum: int) -> SessionBatch:
        """The batch that advances these nodes of one cell type. Counts its steps as begun; `apply` or `abandon` it.

        keys, nodes, steps: [R]. A node whose chain is underway may be advanced further before `apply`.
        """
        spec, table, num_rows = self._specs[cell], self._table, len(keys)
        rows, write = np.empty(num_rows, np.int32), np.empty(num_rows, np.int32)
        read, is_first = np.empty((num_rows, spec.arity), np.int32), np.empty(num_rows, np.bool_)
        given = np.empty((len(spec.inputs), num_rows, quantum), np.int32)
        found = self._kernels.advance(
            table.nodes, table.slots, table.places, table.values, table.requests, keys, nodes, steps, cell, rows, read,
            write, is_first, given
        )  # fmt: skip
        if found == NONE:
            raise RuntimeError("a node was scheduled as another cell, or beyond its last step. This is a bug.")
        inputs = dict(zip(spec.inputs, given, strict=True))
        return SessionBatch(CellBatch(spec.name, read, write, inputs, steps, is_first, quantum), cell, keys, rows)

    def apply(self, done: SessionBatch, output: CellOutput) -> Applied:
        """Store what a batch has emitted, and release the slots that no node reads any more."""
        table, rows, asked = self._table, done.rows, done.batch.steps
        ran, is_stopped = np.asarray(output.steps, np.int32), np.asarray(output.is_stopped, np.bool_)
        num_steps = self._kernels.count_steps(asked, ran) if ran.shape == asked.shape else NONE
        if num_steps == NONE:
            raise RuntimeError(f"the engine ran other steps of {done.batch.cell!r} than asked. This is a bug.")
        has_failed = np.zeros(len(rows), np.bool_)
        if output.failed:
            has_failed[list(output.failed)] = True
            ran = np.where(has_failed, np.int32(0), ran)
        for column, emission in enumerate(self._specs[done.cell].emits, table.first_emission):
            emitted = np.ascontiguousarray(output.emitted[emission.name]).view(np.int32).reshape(len(rows), -1)
            self._kernels.store(
                table.nodes, table.places, table.values, table.requests, rows, ran, column, emission.width, emitted
            )
        has_ended, finished = np.empty(len(rows), np.bool_), np.empty(len(rows), np.int32)
        is_closed = table.is_closed(done.requests) if output.failed else has_failed  # before one is forgotten
        num_finished, num_released = self._kernels.apply(
            table.nodes, table.slots, table.values, table.requests, table.counts, rows, ran, is_stopped, has_failed,
            has_ended, finished, table.released
        )  # fmt: skip
        self._release(num_released)
        failed = {row: error for row, error in output.failed.items() if not is_closed[row]} if output.failed else {}
        return Applied(has_ended, finished[:num_finished], failed, num_steps)

    def abandon(self, lost: SessionBatch) -> None:
        """Take back a batch that the engine rejected or lost; none of its steps has run."""
        table = self._table
        self._release(
            self._kernels.abandon(
                table.nodes, table.slots, table.values, table.requests, table.counts, lost.rows, lost.batch.steps,
                table.released
            )
        )  # fmt: skip

    def results(self, keys: Int32Array) -> Results:
        """Emissions of requests so far, each as one row: see `emissions.split`."""
        table, offsets = self._table, np.empty(len(keys) + 1, np.int32)
        size = self._kernels.measure_results(table.nodes, table.requests, keys, self._columns, self._widths, offsets)
        found, has_nan = np.empty(offsets[-1], np.int32), np.empty(len(keys), np.bool_)
        self._kernels.collect(
            table.nodes, table.places, table.values, table.requests, keys, self._columns, self._widths, self._is_float,
            offsets, found, has_nan
        )  # fmt: skip
        values = found.view(np.float32)
        if size != NONE:
            return Results(list(values.reshape(len(keys), size)), has_nan)
        return Results([values[start:end] for start, end in pairwise(offsets.tolist())], has_nan)

    def emitted(self, key: int) -> list[NodeOutput]:
        """Emissions so far of each node whose cell emits, in the graph's order."""
        first, num_nodes = self._table.requests[key, [NODE, NUM_NODES]].tolist()
        nodes = [(node, self._values_of(first + node)) for node in range(num_nodes)]
        return [NodeOutput(node, values) for node, values in nodes if values]

    def close(self, keys: Int32Array) -> None:
        """Forget requests, finished or not. What they still have underway is ignored; then their slots are free."""
        table = self._table
        num_released = self._kernels.close(
            table.nodes, table.slots, table.values, table.requests, table.counts, keys, table.released
        )
        if num_released == NONE:
            raise ValueError("a request was closed that is not open. This is a bug.")
        self._release(num_released)
        table.shrink()

    def check_integrity(self) -> None:
        """Raise unless every slot and every row belongs to an open request. Called by tests, and when idle."""
        self._pool.check_integrity()
        self._table.check_integrity()
        if self._table.counts[NUM_KNOWN] == 0 and self._pool.num_free != self._pool.num_slots - 1:
            raise RuntimeError("slots are in use, but no request is open. This is a bug.")

    def _values_of(self, node: int) -> dict[str, Emitted]:
        values: dict[str, Emitted] = {}
        emits = self._specs[self._table.nodes[node, CELL]].emits
        for column, emission in enumerate(emits, self._table.first_emission):
            found = self._table.values_of(node, column, emission.width)
            values[emission.name] = found.view(np.float32).copy() if emission.dtype.is_floating_point else found.copy()
        return values

    def _release(self, num_released: int) -> None:
        if num_released:
            self._pool.release(self._table.released[:num_released])
