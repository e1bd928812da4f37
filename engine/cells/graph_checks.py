"""Checks of a graph that a builder has made. Errors say which node is at fault, and what to change."""

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
    WrongArity,
)
from penstock.engine.cells.graph import GraphLimits, InputValues, Rows, Unfolded
from penstock.engine.cells.kernels.compiled import load_kernels


def check_graph(graph: Unfolded, specs: Sequence[CellSpec], limits: GraphLimits) -> None:
    """Raise the InvalidGraph that says why the request cannot run; return if it can.

    Each node is of a known cell, reads as many nodes as that and has its inputs, by the builder.
    """
    _check_steps(graph, limits)
    _check_reads(graph, specs)
    _check_inputs(graph, specs)
    _check_shape(graph, limits)


def _check_steps(graph: Unfolded, limits: GraphLimits) -> None:
    if graph.steps.min() < 1:
        raise EmptySequence(f"node {int(graph.steps.argmin())} has no step; a sequence has at least one token.")
    num_steps = int(graph.steps.sum(dtype=np.int64))
    if num_steps > limits.max_steps:
        raise GraphTooLarge(f"the request has {num_steps} steps; at most {limits.max_steps} are allowed. Shorten it.")


def _check_reads(graph: Unfolded, specs: Sequence[CellSpec]) -> None:
    reads, num_nodes = graph.reads, len(graph.cells)
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
    for cell, mine in graph.by_cell():
        spec = specs[cell]
        for name in spec.inputs:
            given = graph.inputs[name]
            _check_counts(graph.steps[mine], given.counts[mine], mine, name, spec)
            if name in spec.input_sizes:
                _check_values(given, mine, name, spec.input_sizes[name])


def _check_counts(steps: Int32Array, counts: Int32Array, mine: Rows, name: str, spec: CellSpec) -> None:
    """Whether nodes of a cell have a value of an input for each step, or one for all. mine: the nodes' numbers."""
    is_right = counts == 1
    if name not in spec.feedback:
        is_right |= counts == steps
    if not is_right.all():
        wrong = int(is_right.argmin())
        raise InvalidSequence(
            f"node {mine[wrong]} has {counts[wrong]} values of input {name!r} for {steps[wrong]} steps of cell "
            f"{spec.name!r}. It needs one for each step or one for all; one where it is fed back."
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
