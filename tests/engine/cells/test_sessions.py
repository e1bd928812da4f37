"""Requests between their batches: full pools, partial results, cancellation, lost batches."""

from typing import Any

import numpy as np
import pytest
import torch

from penstock.engine.cells.contract import Cell, CellSpec, StateSpec, Tensors
from penstock.engine.cells.cpu import CpuStepEngine
from penstock.engine.cells.errors import CellFailed, GraphTooLarge
from penstock.engine.cells.graph import GraphBuilder, Unfolded
from penstock.engine.cells.model import CellModel, Request
from penstock.engine.cells.sessions import Applied, SessionBatch, Sessions
from penstock.engine.cells.state_pool import StatePool
from tests.engine.cells.loop import RandomLoop

SUM = StateSpec("sum", 1)
RAISES = 66


def add(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
    if (inputs["value"] == RAISES).any():
        raise ArithmeticError("a bad value")
    new = states["sum"] + inputs["value"][:, None].float()
    return {"sum": new}, {"sum": new, "is_ten": (new == 10).int()}


EMITS = (SUM, StateSpec("is_ten", 1, torch.int32))
ADD = Cell(CellSpec("add", (SUM,), ("value",), emits=EMITS, stop={"is_ten": 1}, max_rows=8, max_steps=4), add)


def unfold(request: Request, graph: GraphBuilder) -> None:
    """A chain for each list; each chain but the first reads the first."""
    first, *others = request["chains"]
    root = graph.add("add", value=first)
    for values in others:
        graph.add("add", reads=[root], value=values)


MODEL = CellModel.of([ADD], unfold)


def graph_of(*chains: list[int]) -> Unfolded:
    return MODEL.unfold({"chains": chains})


class Bench:
    """Sessions and an engine, by hand."""

    def __init__(self, num_slots: int = 8) -> None:
        self.pool = StatePool(num_slots)
        self.sessions = Sessions(MODEL.specs, self.pool)
        self.engine = CpuStepEngine(MODEL.cells, num_slots)

    def batch(self, *rows: tuple[int, int, int]) -> SessionBatch:
        """rows: request, node, steps."""
        ids, nodes, steps = zip(*rows, strict=True)
        arrays = np.array(nodes, np.int32), np.array(steps, np.int32)
        return self.sessions.batch(0, ids, *arrays, max(steps))

    def finish(self, batch: SessionBatch) -> Applied:
        return self.sessions.apply(batch, self.engine.start(batch.batch).result())

    def sums(self, id: int) -> list[list[float]]:
        return [output.values["sum"][:, 0].tolist() for output in self.sessions.emitted(id)]


def test_a_request_waits_while_the_pool_is_exhausted_and_others_leave() -> None:
    bench = Bench(num_slots=5)
    assert bench.sessions.open(1, graph_of([1], [2], [3]))  # no chain may overwrite what the other one reads
    assert bench.pool.num_free == 1
    assert not bench.sessions.open(2, graph_of([1], [2], [3]))
    assert bench.sessions.open(3, graph_of([1], [2]))  # its second chain is the only reader of the first
    assert bench.sessions.num_open == 2
    bench.sessions.close(1)
    assert bench.sessions.open(2, graph_of([1], [2], [3]))


def test_a_request_that_the_whole_pool_could_not_hold_is_rejected() -> None:
    with pytest.raises(GraphTooLarge, match="4 state slots at once, and the pool has 3"):
        Bench(num_slots=4).sessions.open(1, graph_of([1], [2], [3], [4]))


def test_slots_are_free_when_the_last_reader_has_read() -> None:
    bench = Bench(num_slots=8)
    bench.sessions.open(1, graph_of([1], [2, 2], [3]))
    assert bench.pool.num_free == 4
    bench.finish(bench.batch((1, 0, 1)))
    bench.finish(bench.batch((1, 1, 1)))
    assert bench.pool.num_free == 4
    applied = bench.finish(bench.batch((1, 1, 1), (1, 2, 1)))
    assert bench.pool.num_free == 7
    assert applied.finished == [1]
    assert bench.sums(1) == [[1], [3, 5], [4]]
    bench.sessions.close(1)
    bench.sessions.check_integrity()


def test_emissions_so_far_can_be_read_while_a_request_runs() -> None:
    bench = Bench()
    bench.sessions.open(1, graph_of([1, 2, 3]))
    assert bench.sums(1) == [[]]
    applied = bench.finish(bench.batch((1, 0, 2)))
    assert (applied.has_ended.tolist(), applied.finished) == ([False], [])
    assert bench.sums(1) == [[1, 3]]


def test_a_chain_that_stops_while_its_next_quantum_is_underway_ends_once() -> None:
    bench = Bench()
    bench.sessions.open(1, graph_of([5, 5, 1, 1]))
    first, second = bench.batch((1, 0, 2)), bench.batch((1, 0, 2))
    assert bench.finish(first).finished == [1]
    bench.sessions.close(1)
    assert bench.pool.num_free == 7
    bench.sessions.open(2, graph_of([7]))  # may take the slot: it runs after `second`
    third = bench.batch((2, 0, 1))
    outputs = [bench.engine.start(batch.batch).result() for batch in (second, third)]
    applied = bench.sessions.apply(second, outputs[0])
    assert (applied.has_ended.tolist(), applied.finished) == ([False], [])
    assert bench.sessions.apply(third, outputs[1]).finished == [2]
    assert bench.sums(2) == [[7]]
    bench.sessions.close(2)
    bench.sessions.check_integrity()


def test_a_cancelled_request_keeps_its_slots_until_its_batch_is_done() -> None:
    bench = Bench()
    bench.sessions.open(1, graph_of([1, 2, 3], [4]))
    batch = bench.batch((1, 0, 1))
    bench.sessions.close(1)
    assert bench.sessions.num_open == 0
    assert bench.pool.num_free == 6
    applied = bench.finish(batch)
    assert not applied.has_ended.any()
    assert (applied.finished, applied.failed) == ([], {})
    bench.sessions.check_integrity()


def test_an_id_may_be_used_again_while_its_old_batch_is_underway() -> None:
    bench = Bench()
    bench.sessions.open(1, graph_of([1, 2]))
    old = bench.batch((1, 0, 2))
    bench.sessions.close(1)
    bench.sessions.open(1, graph_of([9, 9]))
    new = bench.batch((1, 0, 2))
    bench.finish(old)
    assert bench.finish(new).finished == [1]
    assert bench.sums(1) == [[9, 18]]


def test_a_batch_that_was_lost_can_run_again() -> None:
    bench = Bench()
    bench.sessions.open(1, graph_of([1, 2, 3]))
    bench.sessions.abandon(bench.batch((1, 0, 2)))
    bench.finish(bench.batch((1, 0, 3)))
    assert bench.sums(1) == [[1, 3, 6]]
    bench.sessions.open(2, graph_of([1]))
    batch = bench.batch((2, 0, 1))
    bench.sessions.close(2)
    bench.sessions.abandon(batch)
    bench.sessions.close(1)
    bench.sessions.check_integrity()


def test_a_failed_row_fails_its_request_and_no_other() -> None:
    loop = RandomLoop(MODEL, num_slots=16, depth=2)
    for id, chains in enumerate([[[1, 2]], [[1, RAISES], [2]], [[3], [4], [RAISES]], [[5], [6]]]):
        loop.add(id, {"chains": chains})
    loop.run()
    assert sorted(loop.results) == [0, 3]
    assert sorted(loop.errors) == [1, 2]
    assert all(isinstance(error, CellFailed) for error in loop.errors.values())


def test_a_node_beyond_its_steps_is_a_bug() -> None:
    bench = Bench()
    bench.sessions.open(1, graph_of([1, 2]))
    bench.batch((1, 0, 2))
    with pytest.raises(RuntimeError, match="This is a bug"):
        bench.batch((1, 0, 1))
    with pytest.raises(ValueError, match="open already"):
        bench.sessions.open(1, graph_of([1]))


def test_many_requests_of_all_sizes_leave_nothing_behind() -> None:
    bench = Bench(num_slots=64)
    random = np.random.default_rng(0)
    expected: dict[int, Any] = {}
    for id in range(300):
        values = random.integers(11, 60, int(random.integers(1, 4))).tolist()
        assert bench.sessions.open(id, graph_of(values))
        expected[id] = np.cumsum(values).tolist()
        if id % 5 == 4:
            rows = [(one, 0, len(values)) for one, values in expected.items()]
            assert bench.finish(bench.batch(*rows)).finished == list(expected)
            assert [bench.sums(one)[0] for one in expected] == list(expected.values())
            for one in expected:
                bench.sessions.close(one)
            expected = {}
    bench.sessions.check_integrity()
