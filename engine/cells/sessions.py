"""Active requests between their batches: slots, inputs and emissions of their nodes."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.contract import CellBatch, CellOutput, CellSpec, Int32Array
from penstock.engine.cells.emissions import emissions_of
from penstock.engine.cells.graph import Unfolded
from penstock.engine.cells.kernels.compiled import load_kernels
from penstock.engine.cells.kernels.opening_kernels import NO_ROOM, NO_SLOTS, NODES_NEEDED, OPENED, VALUES_NEEDED
from penstock.engine.cells.node_table import NONE, NUM_OPEN, NodeTable
from penstock.engine.errors import EngineError
from penstock.engine.types import Float32Array

_SHORT = 1024  # values of a result; longer ones are measured before memory is taken for them

BoolArray = npt.NDArray[np.bool_]


class SessionBatch(NamedTuple):
    """A batch for the engine, and the rows of the table that it advances."""

    batch: CellBatch
    cell: int
    requests: Int32Array  # [R] their keys
    rows: Int32Array  # [R]


class Applied(NamedTuple):
    """Changes of a finished batch for the scheduler and the replies."""

    finished: Int32Array  # rows whose request's last node ended with them: its emissions are complete
    failed: Mapping[int, EngineError]  # rows that failed: nothing of their requests may run any more
    num_steps: int  # that ran, of all rows


class Results(NamedTuple):
    """Emissions of requests, as `emissions.split` takes them."""

    rows: list[Float32Array]
    is_not_finite: BoolArray  # [G] an engine on a GPU does not look


class Sessions:
    """Requests from `open` to `close`. Batches are made and applied in the order in which the engine starts them.

    Used by one thread. A request's slots are all acquired when it opens, so that an open request never waits for one.
    Its key is a small number, which may be that of a later request once it is closed and has no batch underway.
    """

    def __init__(self, specs: Sequence[CellSpec], num_slots: int) -> None:
        """specs: of the model's cell types, in the order of `Unfolded.cells`. num_slots: of the engine's pool.

        Compiles for seconds on first use.
        """
        self._specs = specs
        self._table = NodeTable(specs, num_slots)
        self._kernels = load_kernels()
        emissions = emissions_of(specs)
        self._columns = np.full((len(emissions), len(specs)), NONE, np.int32)
        for row, emission in enumerate(emissions):
            for cell, spec in enumerate(specs):
                names = [emitted.name for emitted in spec.emits]
                if emission.name in names:
                    self._columns[row, cell] = self._table.first_emission + names.index(emission.name)
        self._widths = np.array([emission.width for emission in emissions], np.int32)
        self._length = 0  # of each of the last results, if one: the next are likely as long
        self._is_float = np.array([emission.dtype == "float32" for emission in emissions], np.int32)

    @property
    def num_open(self) -> int:
        return int(self._table.counts[NUM_OPEN])

    def open(self, graphs: Sequence[Unfolded]) -> Int32Array | None:
        """Acquire the slots of requests, at least one, and store their inputs. Returns the key of each.

        None while the pool has too few free slots for all of them: nothing is opened, try again later. The graphs were
        checked. Raises GraphTooLarge for a request that needs more slots than the pool has.
        """
        packed = np.frombuffer(bytearray().join([graph.packed for graph in graphs]), np.int32)
        keys, num_values = np.empty((2, len(graphs)), np.int32)
        needed = np.empty(3, np.int32)
        found = self._open(packed, keys, num_values, needed)
        if found == NO_ROOM:
            self._table.reserve(len(graphs), int(needed[NODES_NEEDED]), int(needed[VALUES_NEEDED]))
            found = self._open(packed, keys, num_values, needed)
        if found == OPENED:
            return keys
        if found != NO_SLOTS:
            raise ValueError(f"request {found} was not checked for this model. This is a bug.")
        for graph in graphs:
            graph.require_slots(self._table.num_slots - 1)
        return None

    def _open(self, packed: Int32Array, keys: Int32Array, num_values: Int32Array, needed: Int32Array) -> int:
        table = self._table
        found: int = self._kernels.open_requests(
            packed, table.inputs, table.widths, table.num_inputs, table.nodes, table.slots, table.places, table.values,
            table.requests, table.counts, *table.pool, keys, num_values, needed
        )  # fmt: skip
        return found

    def batch(self, cell: int, keys: Int32Array, nodes: Int32Array, steps: Int32Array, quantum: int) -> SessionBatch:
        """The batch that advances these nodes of one cell type. Counts its steps as begun; `apply` it.

        keys, nodes, steps: [R]. A node whose chain is underway may be advanced further before `apply`.
        """
        spec, table, num_rows = self._specs[cell], self._table, len(keys)
        rows, write = np.empty((2, num_rows), np.int32)
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
        ran, is_stopped = output.steps, output.is_stopped
        has_failed = np.zeros(len(rows), np.bool_)
        are_possible = ran.shape == asked.shape
        if output.failed:
            has_failed[list(output.failed)] = True
            ran = np.where(has_failed, np.int32(0), ran)
        for column, emission in enumerate(self._specs[done.cell].emits, table.first_emission):
            emitted = np.ascontiguousarray(output.emitted[emission.name]).view(np.int32).reshape(len(rows), -1)
            are_possible = are_possible and self._kernels.store(
                table.nodes, table.places, table.values, table.requests, rows, asked, ran, column, emission.width,
                emitted
            )  # fmt: skip
        finished = np.empty(len(rows), np.int32)
        is_closed = table.is_closed(done.requests) if output.failed else has_failed  # before one is forgotten
        num_finished, num_steps = 0, NONE
        if are_possible:
            num_finished, num_steps = self._kernels.apply(
                table.nodes, table.slots, table.values, table.requests, table.counts, *table.pool, rows, asked,
                ran, is_stopped, has_failed, finished
            )  # fmt: skip
        if num_steps == NONE:
            raise RuntimeError(f"the engine ran other steps of {done.batch.cell!r} than asked. This is a bug.")
        failed = {row: error for row, error in output.failed.items() if not is_closed[row]} if output.failed else {}
        return Applied(finished[:num_finished], failed, num_steps)

    def results(self, keys: Int32Array) -> Results:
        """Emissions of requests so far, each as one row: see `emissions.split`."""
        num_keys = len(keys)
        offsets, is_not_finite = np.empty(num_keys + 1, np.int32), np.empty(num_keys, np.bool_)
        found = np.empty(self._length * num_keys, np.int32)
        length = self._collect(keys, offsets, found, is_not_finite)
        num_values = int(offsets[-1])
        if num_values > len(found):
            found = np.empty(num_values, np.int32)
            self._collect(keys, offsets, found, is_not_finite)
        elif num_values < len(found):
            found = found[:num_values].copy()  # each row would keep all of it
        self._length = length if 0 < length <= _SHORT else 0
        values = found.view(np.float32)
        if length != NONE:
            return Results(list(values.reshape(num_keys, length)), is_not_finite)
        return Results([values[start:end] for start, end in pairwise(offsets.tolist())], is_not_finite)

    def _collect(self, keys: Int32Array, offsets: Int32Array, found: Int32Array, is_not_finite: BoolArray) -> int:
        table = self._table
        size: int = self._kernels.collect(
            table.nodes, table.places, table.values, table.requests, keys, self._columns, self._widths, self._is_float,
            offsets, found, is_not_finite
        )  # fmt: skip
        return size

    def close(self, keys: Int32Array) -> None:
        """Forget requests, finished or not. What they still have underway is ignored; then their slots are free."""
        table = self._table
        if not self._kernels.close(
            table.nodes, table.slots, table.values, table.requests, table.counts, *table.pool, keys
        ):
            raise ValueError("a request was closed that is not open. This is a bug.")
        table.shrink()

    def check_integrity(self) -> None:
        """Raise unless every slot and every row belongs to an open request. Called by tests, and when idle."""
        self._table.check_integrity()
