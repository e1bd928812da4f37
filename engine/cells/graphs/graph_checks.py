"""Checks of a request's graph before it is admitted. Errors say which node is at fault, and what to change."""

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter

import numpy as np

from penstock.engine.cells.contract import NO_NODE, CellSpec, Int32Array
from penstock.engine.cells.errors import (
    CyclicGraph,
    DisconnectedGraph,
    EmptySequence,
    GraphTooLarge,
    InvalidGraph,
    InvalidSequence,
    UnknownCell,
    WrongArity,
)
from penstock.engine.cells.graphs.graph import GraphLimits, InputValues, Rows, Unfolded
from penstock.engine.cells.kernels.compiled import load_kernels


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
        raise limits.too_many_nodes(str(num_nodes))
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
    nodes, columns = np.nonzero(reads != NO_NODE)
    pairs = set(zip(graph.cells[nodes].tolist(), graph.cells[reads[nodes, columns]].tolist(), strict=True))
    for reader, writer in pairs:
        missing = set(specs[reader].states) - set(specs[writer].states)
        if missing:
            raise WrongArity(
                f"a node of cell {specs[reader].name!r} reads states that cell {specs[writer].name!r} does not write: "
                f"{sorted(state.name for state in missing)}."
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
    num_nodes, groups = len(graph.cells), graph.by_cell()
    names = {name for spec in specs for name in spec.inputs}
    if graph.inputs.keys() != names:
        raise InvalidSequence(
            f"the model's cells need the inputs {sorted(names)}; {sorted(names - graph.inputs.keys())} are missing, "
            f"and {sorted(graph.inputs.keys() - names)} are unknown."
        )
    for name, (_, offsets) in graph.inputs.items():
        if len(offsets) != num_nodes + 1:
            raise InvalidSequence(f"input {name!r} needs {num_nodes + 1} offsets; found {len(offsets)}.")
    for cell, mine in groups:
        spec = specs[cell]
        for name, given in graph.inputs.items():
            _check_counts(graph.steps[mine], given.counts[mine], mine, name, spec)
            if name in spec.input_sizes:
                _check_values(given, mine, name, spec.input_sizes[name])


def _check_counts(steps: Int32Array, counts: Int32Array, mine: Rows, name: str, spec: CellSpec) -> None:
    """Whether nodes of a cell have a value of an input for each step, or one for all. mine: the nodes' numbers."""
    if name not in spec.inputs:
        is_right = counts == 0
    elif name in spec.feedback:
        is_right = counts == 1
    else:
        is_right = (counts == steps) | (counts == 1)
    if not is_right.all():
        wrong = int(is_right.argmin())
        raise InvalidSequence(
            f"node {mine[wrong]} has {counts[wrong]} values of input {name!r} for {steps[wrong]} steps of cell "
            f"{spec.name!r}. It needs one for each step or one for all; one where it is fed back; else none."
        )


def _check_values(given: InputValues, mine: Rows, name: str, size: int) -> None:
    values = given.values
    if len(mine) < len(given.offsets) - 1:
        is_mine = np.zeros(len(given.offsets) - 1, np.bool_)
        is_mine[mine] = True
        values = values[np.repeat(is_mine, given.counts)]
    if values.min() < 0 or values.max() >= size:
        raise InvalidSequence(
            f"input {name!r} must be in [0, {size}). Given: values from {values.min()} to {values.max()}."
        )


def _check_shape(graph: Unfolded, limits: GraphLimits) -> None:
    """Depth, and whether all nodes hang together."""
    if len(graph.cells) == 1:
        return
    depth, num_groups = load_kernels().measure_shape(graph.reads)
    if depth > limits.max_depth:
        raise GraphTooLarge(f"the graph is {depth} nodes deep; at most {limits.max_depth} are allowed. Split it.")
    if num_groups > 1:
        raise DisconnectedGraph(
            f"the graph has {num_groups} parts that do not read each other. Send each as a request."
        )
