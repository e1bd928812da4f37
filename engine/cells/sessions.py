"""Active requests between their batches: slots, inputs and emissions of their nodes."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.contract import NO_SLOT, CellBatch, CellOutput, CellSpec, Int32Array
from penstock.engine.cells.emissions import Emitted, NodeOutput
from penstock.engine.cells.graph import Rows, Unfolded
from penstock.engine.cells.node_table import NodeRange, NodeTable
from penstock.engine.cells.state_pool import StatePool
from penstock.engine.errors import EngineError


class SessionBatch(NamedTuple):
    """A batch for the engine, and the rows of the table that it advances."""

    batch: CellBatch
    ids: list[int]  # [R] requests
    nodes: Int32Array  # [R] their nodes
    rows: Rows  # [R]


class Applied(NamedTuple):
    """Changes of a finished batch for the scheduler and the replies."""

    has_ended: npt.NDArray[np.bool_]  # [R] nodes that ended with this batch
    finished: list[int]  # requests whose last node ended: their emissions are complete
    failed: dict[int, EngineError]  # requests of which a row failed: nothing of them may run any more


class _Session:
    """One active request."""

    __slots__ = ("num_unended", "place")

    def __init__(self, place: NodeRange) -> None:
        self.place = place
        self.num_unended = place.num_nodes


class Sessions:
    """Requests from `open` to `close`. Batches are made and applied in the order in which the engine starts them.

    Used by one thread. A request's slots are all acquired when it opens, so that an open request never waits for one.
    """

    def __init__(self, specs: Sequence[CellSpec], pool: StatePool) -> None:
        """specs: of the model's cell types, in the order of `Unfolded.cells`."""
        self._specs = specs
        self._pool = pool
        self._table = NodeTable(specs)
        self._sessions: dict[int, _Session] = {}
        self._closing: dict[int, _Session] = {}  # by first row: closed, with batches underway

    @property
    def num_open(self) -> int:
        return len(self._sessions)

    def open(self, id: int, graph: Unfolded) -> bool:
        """Acquire a request's slots and store its inputs. False while the pool has too few free slots: try again later.

        `graph` was checked. Raises GraphTooLarge for a request that needs more slots than the pool has.
        """
        if id in self._sessions:
            raise ValueError(f"request {id} is open already. This is a bug.")
        graph.require_slots(self._pool.num_slots - 1)
        plan = graph.slot_plan
        slots = self._pool.acquire(plan.num_slots)
        if slots is None:
            return False
        if max(plan.references) > 1:
            self._pool.fork(np.repeat(slots, np.array(plan.references) - 1))
        self._sessions[id] = _Session(self._table.add(graph, slots))
        return True

    def batch(self, cell: int, ids: Sequence[int], nodes: Int32Array, steps: Int32Array, quantum: int) -> SessionBatch:
        """The batch that advances these nodes of one cell type. Counts its steps as begun; `apply` or `abandon` it.

        ids, nodes, steps: [R]. A node whose chain is underway may be advanced further before `apply`.
        """
        spec, table = self._specs[cell], self._table
        rows = np.array([self._sessions[id].place.first for id in ids], np.int64) + nodes
        found = table.nodes[rows]
        begun = found["begun"]
        if (found["cell"] != cell).any() or (begun + steps > found["steps"]).any():
            raise RuntimeError("a node was scheduled as another cell, or beyond its last step. This is a bug.")
        is_first = begun == 0
        read = np.where(is_first[:, None], found["reads"][:, : spec.arity], found["slot"][:, None])
        step = np.minimum(begun[:, None] + np.arange(quantum, dtype=np.int32), found["steps"][:, None] - 1)
        starts, strides = found["starts"], found["strides"]
        inputs = {
            name: table.values[starts[:, column, None] + step * strides[:, column, None]]
            for column, name in enumerate(spec.inputs)
        }
        table.nodes["begun"][rows] += steps
        table.nodes["underway"][rows] += 1
        batch = CellBatch(spec.name, read, np.ascontiguousarray(found["slot"]), inputs, steps, is_first, quantum)
        return SessionBatch(batch, list(ids), nodes, rows)

    def apply(self, done: SessionBatch, output: CellOutput) -> Applied:
        """Store what a batch has emitted, and release the slots that no node reads any more."""
        table, rows = self._table, done.rows
        table.nodes["underway"][rows] -= 1
        found = table.nodes[rows]
        is_open = ~found["is_closed"]
        has_failed = np.zeros(len(rows), np.bool_)
        has_failed[list(output.failed)] = True
        ran = np.where(is_open & ~has_failed, output.steps, 0)
        self._store(done.batch.cell, found, ran, output)
        num_done = found["done"] + ran
        is_over = output.is_stopped | has_failed | (num_done >= found["steps"])
        has_ended = is_open & ~found["has_ended"] & is_over
        spare = found["spare"][is_open & ~found["has_read"]].ravel()
        self._release(spare, found["slot"][has_ended & found["is_last"]])
        table.nodes["done"][rows] = num_done
        table.nodes["has_read"][rows] |= is_open
        table.nodes["has_ended"][rows] |= has_ended
        if not is_open.all():
            self._forget_closed(np.unique(found["first"][~is_open]).tolist())
        failed = {done.ids[row]: error for row, error in output.failed.items() if is_open[row]}
        return Applied(has_ended, self._finished(done.ids, has_ended, failed), failed)

    def abandon(self, failed: SessionBatch) -> None:
        """Take back a batch that the engine rejected or lost; none of its steps has run."""
        self._table.nodes["begun"][failed.rows] -= failed.batch.steps
        self._table.nodes["underway"][failed.rows] -= 1
        found = self._table.nodes[failed.rows]
        self._forget_closed(np.unique(found["first"][found["is_closed"]]).tolist())

    def emitted(self, id: int) -> list[NodeOutput]:
        """Emissions so far of each node whose cell emits, in the graph's order."""
        place = self._sessions[id].place
        return [
            NodeOutput(node, self._values_of(found))
            for node, found in enumerate(self._table.nodes[place.rows])
            if self._specs[found["cell"]].emits
        ]

    def close(self, id: int) -> None:
        """Forget a request, finished or not. What it still has underway is ignored, and then its slots are free."""
        session = self._sessions.pop(id)
        nodes = self._table.nodes[session.place.rows]
        nodes["is_closed"] = True
        self._closing[session.place.first] = session
        self._forget_closed([session.place.first])

    def check_integrity(self) -> None:
        """Raise unless every slot and every row belongs to an open request. Called by tests, and when idle."""
        self._pool.check_integrity()
        num_known = len(self._sessions) + len(self._closing)
        if self._table.num_requests != num_known:
            raise RuntimeError("rows of a forgotten request are still in use. This is a bug.")
        if num_known == 0 and self._pool.num_free != self._pool.num_slots - 1:
            raise RuntimeError("slots are in use, but no request is open. This is a bug.")

    def _store(self, cell: str, found: npt.NDArray[Any], ran: Int32Array, output: CellOutput) -> None:
        spec = next(spec for spec in self._specs if spec.name == cell)
        for column, emission in enumerate(spec.emits, len(spec.inputs)):
            emitted = np.ascontiguousarray(output.emitted[emission.name]).view(np.int32).reshape(len(ran), -1)
            within = np.arange(emitted.shape[1], dtype=np.int32)
            is_valid = within < (ran * emission.width)[:, None]
            targets = (found["starts"][:, column] + found["done"] * emission.width)[:, None] + within
            self._table.values[targets[is_valid]] = emitted[is_valid]

    def _values_of(self, found: np.void) -> dict[str, Emitted]:
        spec = self._specs[found["cell"]]
        values: dict[str, Emitted] = {}
        for column, emission in enumerate(spec.emits, len(spec.inputs)):
            start, size = found["starts"][column], found["done"] * emission.width
            array = self._table.values[start : start + size].reshape(-1, emission.width)
            values[emission.name] = array.view(np.float32).copy() if emission.dtype.is_floating_point else array.copy()
        return values

    def _finished(
        self, ids: list[int], has_ended: npt.NDArray[np.bool_], failed: Mapping[int, EngineError]
    ) -> list[int]:
        finished = []
        for row in np.flatnonzero(has_ended).tolist():
            session = self._sessions[ids[row]]
            session.num_unended -= 1
            if session.num_unended == 0 and ids[row] not in failed:
                finished.append(ids[row])
        return finished

    def _forget_closed(self, firsts: Sequence[int]) -> None:
        """Free the slots and rows of closed requests that have nothing underway."""
        for first in firsts:
            place = self._closing[first].place
            nodes = self._table.nodes[place.rows]
            if nodes["underway"].any():
                continue
            self._release(
                nodes["spare"][~nodes["has_read"]].ravel(), nodes["slot"][nodes["is_last"] & ~nodes["has_ended"]]
            )
            self._table.remove(place)
            del self._closing[first]

    def _release(self, *slots: Int32Array) -> None:
        held = np.concatenate(slots)
        held = held[held != NO_SLOT]
        if len(held) > 0:
            self._pool.release(held)
