"""The kernels of sessions, compiled and ready to run."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from penstock.engine.cells.contract import CellSpec, StateSpec
from penstock.engine.cells.kernels.batch_kernels import describe_input, describe_rows, find_fault
from penstock.engine.cells.kernels.graph_kernels import measure_shape, plan_slots
from penstock.engine.cells.kernels.opening_kernels import NO_ROOM, OPENED, open_requests
from penstock.engine.cells.kernels.result_kernels import collect
from penstock.engine.cells.kernels.session_kernels import advance, apply, close, store
from penstock.engine.cells.node_table import NONE, NodeTable
from penstock.engine.compiling import Compile, load_compiled

_FUNCTIONS = (
    open_requests,
    advance,
    store,
    apply,
    close,
    collect,
    find_fault,
    describe_rows,
    describe_input,
    plan_slots,
    measure_shape,
)


@cache
def load_kernels() -> Any:
    """The kernels by their names: see `load_compiled`."""
    return load_compiled(_make)


def _make(compiled: Compile) -> Any:
    kernels = SimpleNamespace(**{function.__name__: compiled(function) for function in _FUNCTIONS})
    _exercise(kernels)
    return kernels


def _exercise(kernels: Any) -> None:
    """Call each kernel with arrays of the types that come later: a request of one node, of which a step is given back.

    RuntimeError where they do not run. numba keeps a function by the date of its own file, whatever else has changed.
    """
    table = NodeTable([CellSpec("cell", (StateSpec("h", 1),), ("x",), emits=(StateSpec("y", 1, torch.int32),))], 2)
    one = np.ones(1, np.int32)
    fields = np.array([1, 1, 1, 1, 16, 0, 2, 0, 1, NONE, NONE, 1, 0, 2, 7, 8], np.int32)  # see packing.py
    packed = np.frombuffer(bytearray(fields.tobytes()), np.int32)
    keys, num_values, rows, write, finished, members = np.zeros((6, 1), np.int32)
    needed, pool = np.empty(3, np.int32), table.pool
    read, given, is_first = np.empty((1, 1), np.int32), np.empty((1, 1, 1), np.int32), np.empty(1, np.bool_)
    no, offsets = np.zeros(1, np.bool_), np.empty(2, np.int32)
    results: list[int] = []
    for _ in range(2):  # without room, and with it
        nodes, slots, places, values = table.nodes, table.slots, table.places, table.values
        requests, counts = table.requests, table.counts
        found = kernels.open_requests(
            packed, table.inputs, table.widths, 1, nodes, slots, places, values, requests, counts, *pool, keys,
            num_values, needed
        )  # fmt: skip
        results += [found, *needed.tolist()]
        table.reserve(1, 1, 4)
    for _ in range(2):
        results.append(
            kernels.advance(
                nodes, slots, places, values, requests, keys, members, one, 0, rows, read, write, is_first, given
            )
        )
        results.append(int(given[0, 0, 0]))
        first = table.first_emission
        results.append(kernels.store(nodes, places, values, requests, rows, one, one, first, 1, given[0]))
        results += kernels.apply(nodes, slots, values, requests, counts, *pool, rows, one, one, no, no, finished)
    columns = np.full((1, 1), table.first_emission, np.int32)
    row = np.empty(3, np.int32)
    results.append(kernels.collect(nodes, places, values, requests, keys, columns, one, one, offsets, row, no))
    results += [int(no[0]), *row.tolist()]
    results += [kernels.close(nodes, slots, values, requests, counts, *pool, keys), *pool[2].tolist()]
    results.append(kernels.find_fault(read, one, one, 1, np.full(2, NONE, np.int32)))
    described = np.empty(5, np.int32)
    kernels.describe_rows(read, write, one, is_first, 1, np.arange(5), 1, described)
    results += [kernels.describe_input(given[0], one, 9, 4, 1, described), *described.tolist()]
    no_reads = np.full((1, 1), NONE, np.int32)
    results.append(kernels.plan_slots(no_reads, rows, read, finished, members))
    results += [int(finished[0]), int(members[0]), *kernels.measure_shape(no_reads)]
    expected = [NO_ROOM, 1, 4, 1, OPENED, 1, 4, 1, 0, 7, 1, 0, 1, 0, 8, 1, 1, 1, 3, 0, 2, 7, 8, 1, 1, NONE, 1]
    if results != [*expected, 1, 1, 1, 0, 8, 1, 1, 1, 1, 1]:
        raise RuntimeError(f"The compiled sessions give {results}. This is a bug.")
