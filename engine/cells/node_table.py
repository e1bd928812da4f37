"""The nodes of all active requests as one array, and the values that go in and out of them as another.

A batch is then made and taken apart by a few numpy operations, however many requests it has rows of.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.blocks import Blocks
from penstock.engine.cells.contract import NO_SLOT, CellSpec, Int32Array
from penstock.engine.cells.graph import Unfolded


class NodeRange(NamedTuple):
    """Where a request lies in the table."""

    first: int
    num_nodes: int
    first_value: int
    num_values: int

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.num_nodes)


class NodeTable:
    """Rows of nodes and their values. A request's rows are contiguous, and stay where they are."""

    def __init__(self, specs: Sequence[CellSpec]) -> None:
        self._specs = specs
        self.arity = max(spec.arity for spec in specs)
        self._num_columns = max(1, *(len(spec.inputs) + len(spec.emits) for spec in specs))
        self._node_blocks, self._value_blocks = Blocks(), Blocks()
        self.nodes: npt.NDArray[Any] = np.zeros(0, self._fields())
        self.values = np.zeros(0, np.int32)  # inputs and emissions; floats by their bits

    def _fields(self) -> np.dtype[Any]:
        columns = (self._num_columns,)
        return np.dtype(
            [
                ("cell", np.int32),
                ("steps", np.int32),  # at most
                ("begun", np.int32),  # steps given to batches
                ("done", np.int32),  # steps that have run
                ("underway", np.int32),  # batches started and not yet applied
                ("first", np.int32),  # row of the request's first node
                ("slot", np.int32),  # written
                ("reads", np.int32, (self.arity,)),  # slots of the nodes that are read
                ("spare", np.int32, (self.arity,)),  # those of them that are not written too
                ("starts", np.int32, columns),  # of each input, then of each emission, in `values`
                ("strides", np.int32, columns),  # values of one step; 0: one value for all steps
                ("is_last", np.bool_),  # no node reads it
                ("has_read", np.bool_),
                ("has_ended", np.bool_),
                ("is_closed", np.bool_),
            ]
        )

    @property
    def num_requests(self) -> int:
        """Requests whose rows are in use."""
        return self._node_blocks.num_taken

    def add(self, graph: Unfolded, slots: Int32Array) -> NodeRange:
        """Write a request's nodes and inputs. slots: of the pool, one for each that the graph's plan numbers."""
        plan = graph.slot_plan
        starts, strides, num_values = self._layout(graph)
        num_nodes = len(graph.cells)
        place = NodeRange(self._node_blocks.take(num_nodes), num_nodes, self._value_blocks.take(num_values), num_values)
        self.nodes = _grown(self.nodes, self._node_blocks.end)
        self.values = _grown(self.values, self._value_blocks.end)
        starts += place.first_value
        slot_of = np.append(slots, NO_SLOT).astype(np.int32)  # index -1: NO_SLOT
        own = slot_of[plan.slots]
        nodes = np.zeros(num_nodes, self.nodes.dtype)
        nodes["cell"], nodes["steps"], nodes["first"] = graph.cells, graph.steps, place.first
        nodes["slot"] = own
        nodes["reads"] = np.append(own, np.int32(NO_SLOT))[graph.reads[:, : self.arity]]
        nodes["spare"] = slot_of[plan.spare][:, : self.arity]
        nodes["starts"], nodes["strides"], nodes["is_last"] = starts, strides, plan.is_last
        self.nodes[place.rows] = nodes
        self._write_inputs(graph, starts)
        return place

    def remove(self, place: NodeRange) -> None:
        """Free a request's rows and values."""
        self._node_blocks.give_back(place.first, place.num_nodes)
        self._value_blocks.give_back(place.first_value, place.num_values)

    def _layout(self, graph: Unfolded) -> tuple[Int32Array, Int32Array, int]:
        """Starts and strides [N, columns] of a request's values, from 0, and their number."""
        shape = (len(graph.cells), self._num_columns)
        lengths, strides = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
        for cell, mine in graph.by_cell():
            spec, steps = self._specs[cell], graph.steps[mine]
            for column, name in enumerate(spec.inputs):
                counts = graph.inputs[name].counts[mine]
                lengths[mine, column] = counts
                strides[mine, column] = counts > 1
            for column, emission in enumerate(spec.emits, len(spec.inputs)):
                lengths[mine, column] = steps * emission.width
                strides[mine, column] = emission.width
        ends = np.cumsum(lengths, dtype=np.int32).reshape(shape)
        return ends - lengths, strides, int(ends[-1, -1])

    def _write_inputs(self, graph: Unfolded, starts: Int32Array) -> None:
        for cell, mine in graph.by_cell():
            for column, name in enumerate(self._specs[cell].inputs):
                given = graph.inputs[name]
                if len(mine) == 1:
                    first, start, count = given.offsets[mine[0]], starts[mine[0], column], given.counts[mine[0]]
                    self.values[start : start + count] = given.values[first : first + count]
                    continue
                counts = given.counts[mine]
                inside = _ranges(counts)
                sources = np.repeat(given.offsets[:-1][mine], counts) + inside
                self.values[np.repeat(starts[mine, column], counts) + inside] = given.values[sources]


def _ranges(counts: Int32Array) -> Int32Array:
    """0, 1, ... counts[0] - 1, 0, 1, ... counts[1] - 1, ..."""
    ends = np.cumsum(counts, dtype=np.int32)
    return np.arange(ends[-1], dtype=np.int32) - np.repeat(ends - counts, counts)


def _grown(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    """The array, or a copy that is at least twice as long and reaches `length`."""
    if length <= len(array):
        return array
    larger = np.zeros(max(length, 2 * len(array), 256), array.dtype)
    larger[: len(array)] = array
    return larger
