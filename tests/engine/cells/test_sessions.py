"""Requests between their batches: full pools, partial results, cancellation, lost batches."""

import tracemalloc
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from penstock.engine.cells import node_table
from penstock.engine.cells.contract import Cell, CellOutput, CellSpec, StateSpec, Tensors
from penstock.engine.cells.cpu import CpuStepEngine
from penstock.engine.cells.emissions import emissions_of, split
from penstock.engine.cells.errors import CellFailed, GraphTooLarge
from penstock.engine.cells.graph import GraphBuilder, Unfolded
from penstock.engine.cells.kernels.compiled import load_kernels
from penstock.engine.cells.models.model import CellModel, RequestFields
from penstock.engine.cells.sessions import SessionBatch, Sessions
from penstock.engine.errors import EngineError
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


def unfold(request: RequestFields, graph: GraphBuilder) -> None:
    """A chain for each list; each chain but the first reads the first."""
    first, *others = request["chains"]
    root = graph.add("add", value=first)
    for values in others:
        graph.add("add", reads=[root], value=values)


MODEL = CellModel.of([ADD], unfold)
EMISSIONS = emissions_of(MODEL.specs)


def graph_of(*chains: list[int]) -> Unfolded:
    return MODEL.unfold({"chains": chains})


class Finished(NamedTuple):
    """As `Applied`, by requests."""

    finished: list[int]
    failed: dict[int, EngineError]


class Bench:
    """Sessions and an engine, by hand."""

    def __init__(self, num_slots: int = 8) -> None:
        self.sessions = Sessions(MODEL.specs, num_slots)
        self.engine = CpuStepEngine(MODEL.cells, num_slots)
        self.keys: dict[int, int] = {}  # by request
        self.ids: dict[int, list[int]] = {}  # the requests of each batch's rows

    def open(self, *requests: tuple[int, Unfolded]) -> bool:
        keys = self.sessions.open([graph for _, graph in requests])
        if keys is not None:
            self.keys |= dict(zip([one for one, _ in requests], keys.tolist(), strict=True))
        return keys is not None

    def close(self, *ids: int) -> None:
        self.sessions.close(np.array([self.keys.pop(one) for one in ids], np.int32))

    def batch(self, *rows: tuple[int, int, int]) -> SessionBatch:
        """rows: request, node, steps."""
        keys, nodes, steps = np.array([(self.keys[one], node, count) for one, node, count in rows], np.int32).T.copy()
        batch = self.sessions.batch(0, keys, nodes, steps, int(steps.max()))
        self.ids[id(batch)] = [one for one, _, _ in rows]
        return batch

    def finish(self, batch: SessionBatch) -> Finished:
        return self.apply(batch, self.engine.start(batch.batch).result())

    def apply(self, batch: SessionBatch, output: CellOutput) -> Finished:
        applied, ids = self.sessions.apply(batch, output), self.ids.pop(id(batch))
        finished = [ids[row] for row in applied.finished.tolist()]
        return Finished(finished, {ids[row]: error for row, error in applied.failed.items()})

    @property
    def num_free(self) -> int:
        """Slots."""
        return self.sessions._table.num_free

    def sums(self, id: int) -> list[float]:
        """Of all nodes so far."""
        (row,), _ = self.sessions.results(np.array([self.keys[id]], np.int32))
        sums: list[float] = split(row, EMISSIONS)["sum"][:, 0].tolist()
        return sums


def test_a_request_waits_while_the_pool_is_exhausted_and_others_leave() -> None:
    bench = Bench(num_slots=5)
    assert bench.open((1, graph_of([1], [2], [3])))  # no chain may overwrite what the other one reads
    assert bench.num_free == 1
    assert not bench.open((2, graph_of([1], [2], [3])))
    assert bench.open((3, graph_of([1], [2])))  # its second chain is the only reader of the first
    assert bench.sessions.num_open == 2
    bench.close(1)
    assert bench.open((2, graph_of([1], [2], [3])))


def test_a_large_table_without_requests_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_table, "_MOST_KEPT", 300)
    bench = Bench(num_slots=8)
    table = bench.sessions._table
    assert bench.open((1, graph_of([1] * 4)), (2, graph_of([2] * 2000)))
    bench.close(2)
    assert len(table.values) > 2000  # a request is open
    bench.finish(bench.batch((1, 0, 4)))
    assert bench.sums(1) == [1, 2, 3, 4]
    bench.close(1)
    assert len(table.values) == len(table.nodes) == 0
    assert bench.open((3, graph_of([5, 6])))
    bench.finish(bench.batch((3, 0, 2)))
    assert bench.sums(3) == [5, 11]
    bench.sessions.check_integrity()


def test_a_request_that_the_whole_pool_could_not_hold_is_rejected() -> None:
    with pytest.raises(GraphTooLarge, match="4 state slots at once, and the pool has 3"):
        Bench(num_slots=4).open((1, graph_of([1], [2], [3], [4])))


def test_slots_are_free_when_the_last_reader_has_read() -> None:
    bench = Bench(num_slots=8)
    bench.open((1, graph_of([1], [2, 2], [3])))
    assert bench.num_free == 4
    bench.finish(bench.batch((1, 0, 1)))
    bench.finish(bench.batch((1, 1, 1)))
    assert bench.num_free == 4
    applied = bench.finish(bench.batch((1, 1, 1), (1, 2, 1)))
    assert bench.num_free == 7
    assert applied.finished == [1]
    assert bench.sums(1) == [1, 3, 5, 4]
    bench.close(1)
    bench.sessions.check_integrity()


def test_emissions_so_far_can_be_read_while_a_request_runs() -> None:
    bench = Bench()
    bench.open((1, graph_of([1, 2, 3])))
    assert bench.sums(1) == []
    applied = bench.finish(bench.batch((1, 0, 2)))
    assert applied.finished == []
    assert bench.sums(1) == [1, 3]


def test_a_chain_that_stops_while_its_next_quantum_is_underway_ends_once() -> None:
    bench = Bench()
    bench.open((1, graph_of([5, 5, 1, 1])))
    first, second = bench.batch((1, 0, 2)), bench.batch((1, 0, 2))
    assert bench.finish(first).finished == [1]
    bench.close(1)
    assert bench.num_free == 7
    bench.open((2, graph_of([7])))  # may take the slot: it runs after `second`
    third = bench.batch((2, 0, 1))
    outputs = [bench.engine.start(batch.batch).result() for batch in (second, third)]
    applied = bench.apply(second, outputs[0])
    assert applied.finished == []
    assert bench.apply(third, outputs[1]).finished == [2]
    assert bench.sums(2) == [7]
    bench.close(2)
    bench.sessions.check_integrity()


def test_a_node_that_stopped_before_its_last_batch_is_not_counted_again() -> None:
    bench = Bench()
    bench.open((1, graph_of([5, 5, 1, 1], [2], [3])))
    first, second = bench.batch((1, 0, 2)), bench.batch((1, 0, 2))
    assert bench.finish(first).finished == bench.finish(second).finished == []
    assert bench.finish(bench.batch((1, 1, 1))).finished == []
    assert bench.finish(bench.batch((1, 2, 1))).finished == [1]
    assert bench.sums(1) == [5, 10, 12, 13]


def test_a_cancelled_request_keeps_its_slots_until_its_batch_is_done() -> None:
    bench = Bench()
    bench.open((1, graph_of([1, 2, 3], [4])))
    batch = bench.batch((1, 0, 1))
    bench.close(1)
    assert bench.sessions.num_open == 0
    assert bench.num_free == 6
    applied = bench.finish(batch)
    assert (applied.finished, applied.failed) == ([], {})
    bench.sessions.check_integrity()


def test_an_id_may_be_used_again_while_its_old_batch_is_underway() -> None:
    bench = Bench()
    bench.open((1, graph_of([1, 2])))
    old = bench.batch((1, 0, 2))
    bench.close(1)
    bench.open((1, graph_of([9, 9])))
    new = bench.batch((1, 0, 2))
    bench.finish(old)
    assert bench.finish(new).finished == [1]
    assert bench.sums(1) == [9, 18]


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
    bench.open((1, graph_of([1, 2])))
    batch = bench.batch((1, 0, 2))
    with pytest.raises(RuntimeError, match="This is a bug"):
        bench.batch((1, 0, 1))
    key = bench.keys[1]
    bench.finish(batch)
    bench.close(1)
    with pytest.raises(RuntimeError, match="This is a bug"):
        bench.sessions.batch(0, np.array([key], np.int32), np.zeros(1, np.int32), np.ones(1, np.int32), 1)
    with pytest.raises(ValueError, match="not open"):
        bench.sessions.close(np.array([key], np.int32))


def test_many_requests_of_all_sizes_leave_nothing_behind() -> None:
    bench = Bench(num_slots=64)
    random = np.random.default_rng(0)
    expected: dict[int, Any] = {}
    for id in range(300):
        values = random.integers(11, 60, int(random.integers(1, 4))).tolist()
        assert bench.open((id, graph_of(values)))
        expected[id] = np.cumsum(values).tolist()
        if id % 5 == 4:
            rows = [(one, 0, len(values)) for one, values in expected.items()]
            assert bench.finish(bench.batch(*rows)).finished == list(expected)
            assert [bench.sums(one) for one in expected] == list(expected.values())
            for one in expected:
                bench.close(one)
            expected = {}
    bench.sessions.check_integrity()


def test_requests_that_open_together_have_slots_of_their_own_or_none() -> None:
    bench = Bench(num_slots=8)
    graphs = [graph_of([1, 2], [3], [4]), graph_of([5]), graph_of([6], [7])]
    assert bench.open(*enumerate(graphs))
    assert bench.num_free == 7 - 3 - 1 - 1
    assert not bench.open((3, graphs[1]), (4, graphs[0]))
    assert bench.sessions.num_open == 3
    bench.finish(bench.batch((0, 0, 2), (1, 0, 1), (2, 0, 1)))
    assert bench.finish(bench.batch((2, 1, 1), (0, 1, 1), (0, 2, 1))).finished == [2, 0]
    assert [bench.sums(one) for one in range(3)] == [[1, 3, 6, 7], [5], [6, 13]]
    rows, is_not_finite = bench.sessions.results(np.array([bench.keys[2], bench.keys[1]], np.int32))
    assert [split(row, EMISSIONS)["sum"].ravel().tolist() for row in rows] == [[6, 13], [5]]
    assert is_not_finite.tolist() == [False, False]
    bench.close(0, 1, 2)
    bench.sessions.check_integrity()


def test_results_of_one_length_are_a_row_for_each_request() -> None:
    bench = Bench()
    bench.open((0, graph_of([5])), (1, graph_of([7])))
    bench.finish(bench.batch((0, 0, 1), (1, 0, 1)))
    rows, _ = bench.sessions.results(np.array([bench.keys[1], bench.keys[0]], np.int32))
    assert [split(row, EMISSIONS)["sum"].ravel().tolist() for row in rows] == [[7], [5]]


def test_short_results_after_long_ones_keep_no_more_memory_than_their_own() -> None:
    bench = Bench()
    bench.open((0, graph_of([11] * 400)))
    for _ in range(100):
        bench.finish(bench.batch((0, 0, 4)))
    bench.sums(0)
    bench.open((1, graph_of([11])), (2, graph_of([11])))
    bench.finish(bench.batch((1, 0, 1), (2, 0, 1)))
    tracemalloc.start()
    rows, _ = bench.sessions.results(np.array([bench.keys[1], bench.keys[2]], np.int32))
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [len(row) for row in rows] == [4, 4]
    assert num_bytes < 2000


def test_an_engine_that_runs_more_steps_than_asked_is_at_fault() -> None:
    bench = Bench()
    bench.open((1, graph_of([1, 2, 3])))
    batch = bench.batch((1, 0, 1))
    output = bench.engine.start(batch.batch).result()
    with pytest.raises(RuntimeError, match="This is a bug"):
        bench.apply(batch, replace(output, steps=output.steps + 1))


def test_the_kernels_were_compiled_once() -> None:
    """Other types of arrays or numbers would be compiled for anew, for seconds, while batches wait for it."""
    loop = RandomLoop(MODEL, num_slots=16, depth=2)
    for id, chains in enumerate([[[1, 2]], [[1, 3], [2]], [[3], [4], [RAISES]]]):
        loop.add(id, {"chains": chains})
    loop.run()
    assert {len(kernel.signatures) for kernel in vars(load_kernels()).values()} == {1}
