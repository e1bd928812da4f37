"""Checks of a request's graph before it is admitted. Errors say which node is at fault, and what to change."""

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter

import numpy as np

from penstock.engine.cells.contract import NO_NODE, CellSpec
from penstock.engine.cells.errors import (
    CyclicGraph,
    DisconnectedGraph,
    EmptySequence,
    GraphTooLarge,
    InvalidGraph,
    InvalidRequest,
    UnknownCell,
    WrongArity,
)
from penstock.engine.cells.graph import Unfolded


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """Bounds of one request."""

    max_nodes: int = 4096
    max_depth: int = 1024  # nodes on the longest path, such as from a leaf of a tree to its root
    max_steps: int = 8192  # of all nodes together


def check_graph(graph: Unfolded, specs: Sequence[CellSpec], limits: GraphLimits) -> None:
    """Raise the InvalidGraph that says why the request cannot run; return if it can."""
    _check_nodes(graph, specs, limits)
    _check_reads(graph, specs)
    _check_inputs(graph, specs)
    _check_shape(graph, limits)


def _check_nodes(graph: Unfolded, specs: Sequence[CellSpec], limits: GraphLimits) -> None:
    num_nodes = len(graph.cells)
    if num_nodes == 0:
        raise EmptySequence("the graph has no node; a request has at least one step.")
    if num_nodes > limits.max_nodes:
        raise GraphTooLarge(f"the graph has {num_nodes} nodes; at most {limits.max_nodes} are allowed. Split it.")
    arity = max(spec.arity for spec in specs)
    if graph.steps.shape != (num_nodes,) or graph.reads.shape != (num_nodes, arity):
        raise InvalidGraph(f"steps and reads must be [{num_nodes}] and [{num_nodes}, {arity}]: a row for each node.")
    if graph.cells.min() < 0 or graph.cells.max() >= len(specs):
        raise UnknownCell(f"cells must be numbers in [0, {len(specs)}), the model's cell types.")
    if graph.steps.min() < 1:
        raise EmptySequence(f"node {int(graph.steps.argmin())} has no step; a sequence has at least one token.")
    num_steps = int(graph.steps.sum(dtype=np.int64))
    if num_steps > limits.max_steps:
        raise GraphTooLarge(f"the request has {num_steps} steps; at most {limits.max_steps} are allowed. Shorten it.")


def _check_reads(graph: Unfolded, specs: Sequence[CellSpec]) -> None:
    reads, num_nodes = graph.reads, len(graph.cells)
    arities = np.array([spec.arity for spec in specs])[graph.cells]
    is_extra = np.arange(reads.shape[1]) >= arities[:, None]
    is_excess = (is_extra & (reads != NO_NODE)).any(axis=1)
    if is_excess.any():
        node = int(is_excess.argmax())
        raise WrongArity(f"node {node} reads more than {arities[node]} nodes, the arity of its cell.")
    if reads.min() < NO_NODE or reads.max() >= num_nodes:
        raise InvalidGraph(f"a node reads a node that does not exist; nodes are numbered from 0 to {num_nodes - 1}.")
    is_late = reads >= np.arange(num_nodes)[:, None]
    if is_late.any():
        raise _late_read(graph, int(np.flatnonzero(is_late.any(axis=1))[0]))
    states = [{(state.name, state.width, state.dtype) for state in spec.states} for spec in specs]
    nodes, columns = np.nonzero(reads != NO_NODE)
    pairs = np.stack((graph.cells[nodes], graph.cells[reads[nodes, columns]]), axis=1)
    for reader, writer in set(map(tuple, pairs.tolist())):
        if not states[reader] <= states[writer]:
            raise WrongArity(
                f"a node of cell {specs[reader].name!r} reads states that cell {specs[writer].name!r} does not write: "
                f"{sorted(name for name, *_ in states[reader] - states[writer])}."
            )


def _late_read(graph: Unfolded, node: int) -> InvalidGraph:
    """The error for a node that reads itself or a later node: a cycle, or only the wrong order."""
    try:
        TopologicalSorter(
            {reader: [n for n in row if n >= 0] for reader, row in enumerate(graph.reads.tolist())}
        ).prepare()
    except CycleError as error:
        cycle = " -> ".join(map(str, error.args[1]))
        return CyclicGraph(f"the graph has a cycle: {cycle}. A node cannot wait for itself.")
    return InvalidGraph(f"node {node} reads a node that is listed later. List each node after those that it reads.")


def _check_inputs(graph: Unfolded, specs: Sequence[CellSpec]) -> None:
    num_nodes = len(graph.cells)
    for name in {name for spec in specs for name in spec.inputs}:
        if name not in graph.inputs or len(graph.inputs[name].offsets) != num_nodes + 1:
            raise InvalidRequest(f"input {name!r} needs values and {num_nodes + 1} offsets.")
        counts = np.diff(graph.inputs[name].offsets)
        for cell, spec in enumerate(specs):
            mine = graph.cells == cell
            wanted = graph.steps[mine]
            if name in spec.inputs and name in spec.feedback:
                wanted = np.ones_like(wanted)
            elif name not in spec.inputs:
                wanted = np.zeros_like(wanted)
            is_right = (counts[mine] == wanted) | ((counts[mine] == 1) & (wanted > 1))
            if not is_right.all():
                node = int(np.flatnonzero(mine)[int(is_right.argmin())])
                raise InvalidRequest(
                    f"node {node} has {counts[node]} values of input {name!r}; "
                    f"cell {spec.name!r} needs one for each of {graph.steps[node]} steps, or one for all."
                )
            if name in spec.input_sizes:
                _check_values(graph, name, mine, spec.input_sizes[name])


def _check_values(graph: Unfolded, name: str, mine: "np.ndarray[tuple[int], np.dtype[np.bool_]]", size: int) -> None:
    values = graph.inputs[name].values[np.repeat(mine, np.diff(graph.inputs[name].offsets))]
    if len(values) > 0 and (values.min() < 0 or values.max() >= size):
        raise InvalidRequest(
            f"input {name!r} must be in [0, {size}); found values from {values.min()} to {values.max()}."
        )


def _check_shape(graph: Unfolded, limits: GraphLimits) -> None:
    """Depth, and whether all nodes hang together; in one pass, for nodes come after those that they read."""
    num_nodes = len(graph.cells)
    if num_nodes == 1:
        return
    depths = [1] * num_nodes
    groups = list(range(num_nodes))  # union-find
    num_groups = num_nodes
    for node, row in enumerate(graph.reads.tolist()):
        for read in row:
            if read == NO_NODE:
                continue
            depths[node] = max(depths[node], depths[read] + 1)
            a, b = _root(groups, node), _root(groups, read)
            if a != b:
                groups[b] = a
                num_groups -= 1
    if max(depths) > limits.max_depth:
        raise GraphTooLarge(f"the graph is {max(depths)} nodes deep; at most {limits.max_depth} are allowed. Split it.")
    if num_groups > 1:
        raise DisconnectedGraph(
            f"the graph has {num_groups} parts that do not read each other. Send each as a request."
        )


def _root(groups: list[int], node: int) -> int:
    while groups[node] != node:
        groups[node] = groups[groups[node]]
        node = groups[node]
    return node
