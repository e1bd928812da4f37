"""Batches of cells as the GPU runs them, on the CPU: layout, gather, steps and scatter. The kernels are references."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs

from penstock.engine.cells.contract import Cell, CellBatch, CellSpec, StateSpec
from penstock.engine.errors import InvalidBatch
from penstock.engine.gpu.buckets import quanta, row_bucket, row_buckets
from penstock.engine.gpu.cells import lstm as fused
from penstock.engine.gpu.cells.cell_batches import CellLayout
from penstock.engine.gpu.cells.device_states import DeviceStates
from penstock.engine.gpu.cells.torch_quantum import TorchQuantum
from penstock.scheduler.cellular import CellRule
from penstock.scheduler.cellular.choice import choose_quantum
from tests.engine.gpu import lstm_reference
from tests.engine.gpu.cell_checks import Sentences, assert_chains_end_as_nn_lstm, assert_decodes, decoder
from tests.engine.gpu.host_engine import HostEngine
from tests.engine.gpu.lstm_models import LstmModel

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    for kernel in ("lstm_begin", "lstm_step", "short_lstm_step", "chain_lstm"):
        monkeypatch.setattr(fused, kernel, getattr(lstm_reference, kernel))
    monkeypatch.setattr(fused, "supports_chains", lambda hidden, device: True)


def sentences(count: int, vocabulary: int, seed: int = 3) -> Sentences:
    return Sentences.random(np.random.default_rng(seed).integers(1, 30, count), vocabulary, seed)


def batch(cell: str, slots: list[int], steps: list[int], quantum: int) -> CellBatch:
    own = np.array(slots, np.int32)
    tokens = np.zeros((len(slots), quantum), np.int32)
    is_first = np.ones(len(slots), np.bool_)
    return CellBatch(cell, own[:, None], own, {"token": tokens}, np.array(steps, np.int32), is_first, quantum)


@pytest.mark.parametrize(
    ("kind", "layers", "max_short_rows", "max_chain_rows"),
    [
        ("folded", 1, 0, 0),
        ("folded", 1, 0, 8),
        ("folded", 1, 0, 99),
        ("folded", 2, 8, 99),
        ("unfolded", 1, 8, 99),
        ("unfolded", 2, 0, 0),
        ("unfolded", 3, 99, 0),
        ("torch", 1, 0, 0),
    ],
)
def test_chains_that_join_and_leave_end_as_those_of_nn_lstm(
    kind: str, layers: int, max_short_rows: int, max_chain_rows: int
) -> None:
    model = LstmModel.random(40, 16, layers, CPU, seed=1)
    cell = model.cell(kind, 9, 4, max_short_rows=max_short_rows, max_chain_rows=max_chain_rows)
    engine = HostEngine([cell, model.reader(9)], num_slots=64)
    assert_chains_end_as_nn_lstm(engine, "lstm", model, sentences(20, 40), max_rows=9, max_quantum=4, seed=2)


def test_where_the_driver_refuses_chains_steps_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def refused(*arguments: object) -> None:
        calls.append(arguments)
        raise RuntimeError("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE at a launch of (128,) blocks")

    monkeypatch.setattr(fused, "chain_lstm", refused)
    model = LstmModel.random(40, 16, 1, CPU, seed=1)
    with capture_logs() as logs:
        engine = HostEngine([model.cell("folded", 9, 4, max_chain_rows=64), model.reader(9)], 64)
    assert [event["event"] for event in logs] == ["chain_lstm_off"]
    assert_chains_end_as_nn_lstm(engine, "lstm", model, sentences(20, 40), max_rows=9, max_quantum=4, seed=2)
    assert len(calls) == 1


def test_a_decoder_feeds_back_its_tokens_and_does_nothing_once_it_has_stopped() -> None:
    assert_decodes(HostEngine([decoder()], 33), num_chains=32, batches=30, seed=4)


def test_a_tree_cell_reads_two_slots() -> None:
    spec = CellSpec("tree", (StateSpec("sum", 8),), arity=2, emits=(StateSpec("sum", 8),), max_steps=1)
    pool = DeviceStates([spec], 10, CPU)
    pool.states[spec.states[0]][1:10] = torch.arange(1.0, 10)[:, None]
    cell = Cell(spec, lambda states, inputs: ({"sum": states["sum"].sum(1)}, {"sum": states["sum"].sum(1)}))
    layout = CellLayout(spec, row_bucket(2), 1)
    described, results = np.full(layout.num_described, -7, np.int32), torch.zeros(layout.num_results, dtype=torch.int32)
    ones = np.ones(2, np.int32)
    read, write = np.array([[1, 2], [3, 0]], np.int32), np.array([5, 6], np.int32)
    layout.describe(CellBatch("tree", read, write, {}, ones, ones.astype(np.bool_), 1), pool.scratch, described)
    TorchQuantum(cell, pool).launch(layout.views(torch.from_numpy(described), results))
    ran, _, emitted = layout.results(results.numpy(), 2)
    assert ran.tolist() == [1, 1]
    assert emitted["sum"][:, 0, 0].tolist() == [3.0, 3.0]
    assert pool.states[spec.states[0]][:10, 0].tolist() == [0, 1, 2, 3, 4, 3, 3, 7, 8, 9]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": np.array([1, 3], np.int32)}, "steps"),
        ({"write": np.array([1, 0], np.int32)}, "slot"),
        ({"write": np.array([1, 9], np.int32)}, "slot"),
        ({"write": np.array([1, 1], np.int32)}, "another row"),
        ({"write": np.array([2, 3], np.int32)}, "another row"),
        ({"read": np.array([[-1], [2]], np.int32)}, "slot"),
        ({"inputs": {}}, "agree"),
        ({"inputs": {"token": np.array([[0, 40], [0, 0]], np.int32)}}, "outside of its table"),
        ({"quantum": 5}, "rows of 5 steps"),
    ],
)
def test_a_batch_that_would_read_or_write_elsewhere_is_rejected(change: dict[str, object], message: str) -> None:
    model = LstmModel.random(40, 16, 1, CPU, seed=1)
    engine = HostEngine([model.cell("unfolded", 4, 4)], num_slots=9)
    sound = batch("lstm", [1, 2], [2, 2], 2)
    engine.start(sound)
    with pytest.raises(InvalidBatch, match=message):
        engine.start(replace(sound, **change))  # type: ignore[arg-type]  # fields of a batch


def test_tokens_beyond_a_rows_steps_do_not_matter() -> None:
    model = LstmModel.random(40, 16, 1, CPU, seed=1)
    engine = HostEngine([model.cell("folded", 4, 4)], num_slots=9)
    short = batch("lstm", [1, 2], [1, 2], 2)
    short.inputs["token"][0, 1] = 10**6
    assert engine.start(short).result().steps.tolist() == [1, 2]


def test_a_cell_of_two_predecessors_has_no_chains() -> None:
    spec = CellSpec("tree", (StateSpec("h", 8),), arity=2, max_steps=2)
    with pytest.raises(ValueError, match="max_steps must be 1"):
        TorchQuantum(Cell(spec, lambda states, inputs: (states, {})), DeviceStates([spec], 4, CPU))


def test_row_buckets_hold_every_number_of_rows() -> None:
    assert row_buckets(512) == [8, 16, 32, 64, 128, 192, 256, 320, 384, 448, 512]
    assert all(rows <= row_bucket(rows) < rows + 64 for rows in range(1, 2000))


@pytest.mark.parametrize("max_steps", [1, 3, 4, 8, 11, 30, 32])
def test_graphs_are_captured_for_every_quantum_that_the_scheduler_chooses(max_steps: int) -> None:
    rule = CellRule("lstm", 512, max_steps)
    chosen = {choose_quantum(rule, 1, 1e-6, host_us * 1e-6) for host_us in range(1, 50)}
    assert sorted(chosen) == quanta(max_steps)
