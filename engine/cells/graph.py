"""A request as a graph of cells: plain arrays, and the builder that a model's `unfold` fills."""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from inspect import Parameter, signature
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.engine.cells.contract import NO_NODE, CellSpec, Int32Array
from penstock.engine.cells.errors import EmptySequence, GraphTooLarge, InvalidSequence, UnknownCell, WrongArity
from penstock.engine.cells.kernels.compiled import load_kernels
from penstock.engine.cells.packing import SlotPlan, pack

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """Bounds of one request."""

    max_nodes: int = 4096
    max_depth: int = 1024  # nodes on the longest path, such as from a leaf of a tree to its root
    max_steps: int = 8192  # of all nodes together


class InputValues(NamedTuple):
    """Values of one input, those of each node after those of the node before."""

    values: Int32Array  # [V]
    offsets: Int32Array  # [N + 1]; a node has one value for each step, or one for all steps, or none

    @property
    def counts(self) -> Int32Array:
        """Values of each node [N]."""
        return self.offsets[1:] - self.offsets[:-1]


@dataclass(frozen=True)  # no slots: of a cached property
class Unfolded:
    """A request as N nodes, each listed after the nodes that it reads. A chain of one cell type is one node."""

    cells: Int32Array  # [N] index of each node's cell type
    steps: Int32Array  # [N] steps of each node, at least 1; at most so many where the cell has a stop
    reads: Int32Array  # [N, largest arity] nodes whose states are read; NO_NODE: zeros
    inputs: Mapping[str, InputValues]  # all that the model's cells name

    # What follows is worked out once, for the graph is a checked one and does not change.

    @cached_property
    def slot_plan(self) -> SlotPlan:
        """The slots that it needs, by one pass in its order."""
        slots, is_last, references = np.empty((3, len(self.reads)), np.int32)
        spare = np.empty_like(self.reads)
        num_slots = load_kernels().plan_slots(self.reads, slots, spare, is_last, references)
        return SlotPlan(slots, spare, is_last, references[:num_slots])

    @property
    def num_slots(self) -> int:
        """State slots that it acquires at once."""
        return self.slot_plan.num_slots

    @cached_property
    def packed(self) -> bytes:
        """The graph in one piece: see packing.py. Made when the request joins: one that waits takes little memory."""
        inputs = [(self.inputs[name].offsets, self.inputs[name].values) for name in sorted(self.inputs)]
        return pack(self.cells, self.steps, self.reads, self.slot_plan, inputs)

    def require_slots(self, num_slots: int) -> None:
        """Raise GraphTooLarge where a pool with so many slots could not hold the request, even alone."""
        if self.num_slots > num_slots:
            raise GraphTooLarge(
                f"the request needs {self.num_slots} state slots at once, and the pool has {num_slots}. "
                "Split the request, or enlarge the pool."
            )

    def by_cell(self) -> list[tuple[int, Rows]]:
        """The cell types of the graph, each with the index of its nodes."""
        if len(self.cells) == 1:
            return [(int(self.cells[0]), np.zeros(1, np.int64))]
        return [(cell, np.flatnonzero(self.cells == cell)) for cell in sorted(set(self.cells.tolist()))]


class GraphBuilder:
    """Collects the nodes of one request. Whether they make a valid graph, `check_graph` looks afterwards."""

    def __init__(self, specs: Sequence[CellSpec], types: Mapping[str, int], limits: GraphLimits) -> None:
        """specs: of the model's cell types. types: cell name -> index of its type."""
        self._limits = limits
        self._specs = specs
        self._types = types
        self._arity = max(spec.arity for spec in specs)
        self._cells: list[int] = []
        self._steps: list[int] = []
        self._reads: list[Sequence[int]] = []
        self._values: dict[str, list[Int32Array]] = {name: [] for spec in specs for name in spec.inputs}
        self._counts: dict[str, list[int]] = {name: [] for name in self._values}

    def add(
        self, cell: str, *, reads: Sequence[int] = (), steps: int | None = None, **inputs: Sequence[int] | Int32Array
    ) -> int:
        """Add a node and return its number.

        Args:
            cell: name of the cell.
            reads: the nodes whose states are read, as many as the cell's arity; NO_NODE for zeros. Empty: all zeros.
            steps: of the node. Needed where the cell has a feedback, which has no value for each step.
            inputs: of each input a value for each step, or one for all. Of an input with feedback, the first one.
        """
        kind = self._kind_of(cell, len(reads), inputs.keys(), 1)
        if not are_integers(reads if steps is None else (*reads, steps)):  # numpy would cut 2.5 to 2, and read "2"
            raise InvalidSequence(f"reads and steps of a node must be integers. Given: {list(reads)!r}, {steps!r}")
        self._cells.append(kind)
        self._reads.append([*reads, *[NO_NODE] * (self._arity - len(reads))])
        longest = 1
        for name, counts in self._counts.items():
            values = int32_values(name, inputs[name]) if name in inputs else _NONE
            self._values[name].append(values)
            counts.append(len(values))
            longest = longest if name not in inputs or len(values) == 1 else len(values)
        self._steps.append(longest if steps is None else steps)
        return len(self._cells) - 1

    def add_each(
        self, cell: str, count: int, *, reads: Rows | None = None, **inputs: Sequence[int] | Int32Array
    ) -> int:
        """Add `count` nodes of one step each, such as the leaves of a tree, and return the number of the first.

        reads: [count, arity] as in `add`; None: all zeros. inputs: a value for each node.
        """
        kind = self._kind_of(cell, 0 if reads is None else reads.shape[1], inputs.keys(), count)
        if reads is not None and reads.dtype.kind not in "iu":
            raise InvalidSequence(f"reads of nodes must be integers. Given: an array of {reads.dtype}")
        first = len(self._cells)
        self._cells += [kind] * count
        self._steps += [1] * count
        all_reads = np.full((count, self._arity), NO_NODE, np.int64)
        if reads is not None:
            all_reads[:, : reads.shape[1]] = reads
        self._reads += all_reads.tolist()
        for name, counts in self._counts.items():
            values = int32_values(name, inputs[name]) if name in inputs else _NONE
            if name in inputs and len(values) != count:
                raise InvalidSequence(f"input {name!r} has {len(values)} values for {count} nodes of cell {cell!r}.")
            self._values[name].append(values)
            counts += [int(name in inputs)] * count
        return first

    def _kind_of(self, cell: str, arity: int, inputs: Set[str], count: int) -> int:
        """The type of a cell, of which so many nodes may be added, each with so many reads and with these inputs."""
        kind = self._types.get(cell)
        if kind is None:
            raise UnknownCell(f"the model has no cell {cell!r}; it has {', '.join(map(repr, self._types))}.")
        if len(self._cells) + count > self._limits.max_nodes:  # now: an unfold that never ends takes no more memory
            raise GraphTooLarge(f"the graph has more than {self._limits.max_nodes} nodes, the most allowed. Split it.")
        spec = self._specs[kind]
        if arity not in (0, spec.arity):
            raise WrongArity(f"a node of cell {cell!r} reads {spec.arity} nodes, not {arity}; NO_NODE reads zeros.")
        if inputs != set(spec.inputs):
            raise InvalidSequence(f"a node of cell {cell!r} needs the inputs {spec.inputs}; found {tuple(inputs)}.")
        return kind

    def build(self) -> Unfolded:
        """The request's graph, not yet checked."""
        if not self._cells:
            raise EmptySequence("the request unfolds into no node; a request has at least one step.")
        return Unfolded(
            np.array(self._cells, np.int32),
            np.array(self._steps, np.int32),
            np.array(self._reads, np.int32),
            {name: InputValues(np.concatenate(values), self._offsets(name)) for name, values in self._values.items()},
        )

    def _offsets(self, name: str) -> Int32Array:
        offsets = np.zeros(len(self._cells) + 1, np.int32)
        np.cumsum(self._counts[name], out=offsets[1:])
        return offsets


# Names of arguments beside the inputs: an input of such a name could not be given.
ARGUMENTS = frozenset(
    argument.name
    for method in (GraphBuilder.add, GraphBuilder.add_each)
    for argument in signature(method).parameters.values()
    if argument.kind is not Parameter.VAR_KEYWORD
)


def are_integers(values: Iterable[object]) -> bool:
    """Whether all items are integers. Of a string among them numpy makes all items as wide as the longest."""
    return all(issubclass(kind, int | np.integer) for kind in set(map(type, values)))


_NONE = np.zeros(0, np.int32)


def int32_values(name: str, values: object) -> Int32Array:
    """A flat list, or array, of int32 values. Raises InvalidSequence for anything else."""
    if isinstance(values, np.ndarray) and values.dtype == np.int32 and values.ndim == 1:
        return values
    is_mixed = isinstance(values, list | tuple) and not are_integers(values)
    array = np.zeros(()) if is_mixed else np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and len(array) > 0):
        raise InvalidSequence(f"{name!r} must be a flat list of integers.")
    if len(array) > 0 and (array.min() < -(2**31) or array.max() >= 2**31):
        raise InvalidSequence(f"{name!r} has values outside of int32.")
    return array.astype(np.int32, copy=False)
