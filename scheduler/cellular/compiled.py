"""The kernels of the scheduler, compiled and ready to run."""

from collections.abc import Sequence
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np

from penstock.scheduler.cellular.arrays import (
    DUE_AT,
    ID,
    NO_JOB,
    NO_MAXIMUM,
    NONE,
    NUM_ESTIMATES,
    make_arrays,
    with_room,
)
from penstock.scheduler.cellular.types import CellGraph
from penstock.scheduler.compiling import compiled


@cache
def load_kernels() -> Any:
    """The kernels by their names, ready to run. Their files are imported here, as they load numba."""
    from penstock.scheduler.cellular.arriving import arrive, sum_left
    from penstock.scheduler.cellular.index import copy, number_of, remove_all
    from penstock.scheduler.cellular.joining import count_fitting, drop, join
    from penstock.scheduler.cellular.running import plan, settle

    functions = arrive, sum_left, join, plan, settle, drop, number_of, remove_all, copy, count_fitting
    return _named(compiled(functions, _exercise))


def _named(functions: Sequence[Any]) -> Any:
    return SimpleNamespace(**{function.__name__: function for function in functions})


def _exercise(*functions: Any) -> None:
    """Call each kernel with arrays of the types that come later: two nodes, one after the other.

    RuntimeError where they do not run. numba keeps a function by the date of its own file, whatever else has changed.
    """
    kernels = _named(functions)
    graphs = np.frombuffer(bytearray(CellGraph.of_stages((0, 1), (0, 1)).packed), np.int32)
    arrays = with_room(make_arrays(1), 1, len(graphs))
    index, larger = np.full((2, 4, 3), NO_JOB, np.int64)
    columns = np.array([[7], [0], [0], [1], [1]], np.int64)
    ids, begun, is_stopped, removed = *np.zeros((2, 1), np.int64), np.zeros(1, np.bool_), np.zeros((1, 3), np.int64)
    nodes, steps, indices = np.zeros((3, 1), np.int32)
    times, estimates, left_s = np.zeros((3, 1)), np.zeros((1, NUM_ESTIMATES)), np.zeros(2)
    prices = np.ones((2, 1))
    results = [*kernels.arrive(index, graphs, columns, times, prices, 3, 0.0, 1.0, 1.0, 9.0, estimates)]
    kernels.join(*arrays, index, columns, times[DUE_AT], estimates, graphs)
    kernels.sum_left(arrays.order, arrays.counts, arrays.work, left_s)
    kernels.copy(index, larger)
    results += [kernels.number_of(index, 7), kernels.remove_all(larger, columns[ID], removed), *removed[0].tolist()]
    for _ in range(2):
        results += kernels.plan(*arrays, 0, 1, NO_MAXIMUM, 0.0, nodes, steps, ids, indices, begun)
        results += [int(ids[0]), int(indices[0])]
        results += kernels.settle(*arrays, index, nodes, steps, steps, is_stopped, 1.0, ids)
    kernels.drop(*arrays, ids[:0])
    held = np.zeros(2, np.int64)
    results += [kernels.count_fitting(columns, 0, np.ones(1, np.bool_), held, 1.0, 0.75), held.item(0)]
    results += [*left_s.tolist(), kernels.number_of(index, 7)]
    planned = [1, 1, 1, 7, 0, 0, 0, 0, 0, 0, 1, 1, 0, 7, 1, 1, 2, 2, 2, 1]
    expected = [NONE, 0, 1, 0, 0, -2, 2, 4, 1, 7, 4, 0, *planned, 1, 1, 0, 2, NONE]
    if results != expected or arrays.counts.any():
        raise RuntimeError(f"The compiled scheduler gives {results}. This is a bug.")
