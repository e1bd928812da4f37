"""The step engine's queue of batches, with fakes of CUDA. Graphs are captured on a GPU only (tests/gpu)."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from penstock.engine.cells.contract import CellBatch
from penstock.engine.errors import DeviceFailed, InvalidBatch
from penstock.engine.gpu.cells import lstm as fused
from penstock.engine.gpu.cells.step_engine import GpuStepEngine
from penstock.engine.gpu.graphs import Graphs
from tests.engine.gpu import lstm_reference
from tests.engine.gpu.cell_checks import Sentences, assert_chains_end_as_nn_lstm, assert_decodes, decoder
from tests.engine.gpu.fake_cuda import FakeCuda
from tests.engine.gpu.lstm_models import LstmModel

CPU = torch.device("cpu")


class Replay:
    """A graph that runs its work again, as a captured one would."""

    def __init__(self, work: Callable[[], Tensor]) -> None:
        self.replay = work


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    for kernel in ("lstm_begin", "lstm_step", "short_lstm_step"):
        monkeypatch.setattr(fused, kernel, getattr(lstm_reference, kernel))

    def capture(self: Graphs[object], shape: object, work: Callable[[], Tensor]) -> None:
        self._captured[shape] = Replay(work), work()  # type: ignore[assignment]  # a fake

    monkeypatch.setattr(Graphs, "_capture", capture)
    return FakeCuda(monkeypatch)


@pytest.mark.parametrize("is_prepared", [False, True])
def test_chains_end_as_those_of_nn_lstm(is_prepared: bool) -> None:
    model = LstmModel.random(40, 16, 1, CPU, seed=1)
    engine = GpuStepEngine([model.cell("unfolded", 40, 4), model.reader(40)], 99, device="cpu")
    if is_prepared:
        engine.prepare(budget_s=20)
        assert engine.num_graphs == 4 * (3 + 1)  # row buckets 8 to 64: quanta 1, 2 and 4, and the reader's 1
    lengths = np.random.default_rng(3).integers(1, 30, 40)
    assert_chains_end_as_nn_lstm(engine, "lstm", model, Sentences.random(lengths, 40, 3), 40, 4, seed=2)


@pytest.mark.parametrize("is_prepared", [False, True])
def test_results_of_two_batches_underway_are_kept_apart(is_prepared: bool) -> None:
    engine = GpuStepEngine([decoder()], 33, device="cpu")
    if is_prepared:
        engine.prepare(budget_s=20)
    assert_decodes(engine, num_chains=32, batches=30, seed=4)


def test_a_shape_that_comes_again_is_captured_when_the_device_is_idle() -> None:
    engine = GpuStepEngine([decoder()], 33, device="cpu")
    for _ in range(2):
        assert not engine.is_capture_due
        engine.start(_decoded()).result()
    assert engine.is_capture_due
    assert engine.capture_next()
    assert (engine.num_graphs, engine.is_capture_due) == (1, False)


def test_an_unknown_cell_is_rejected() -> None:
    engine = GpuStepEngine([decoder()], 33, device="cpu")
    batch = _decoded()
    with pytest.raises(InvalidBatch, match="'other' is not one of"):
        engine.start(CellBatch("other", batch.read, batch.write, {}, batch.steps, batch.is_first, 1))


def test_after_an_error_that_stays_no_batch_is_started(cuda: FakeCuda) -> None:
    engine = GpuStepEngine([decoder()], 33, device="cpu")
    running = engine.start(_decoded())
    cuda.broken = RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
    running._landing._ended.error = cuda.broken  # type: ignore[attr-defined]  # a fake
    with pytest.raises(DeviceFailed, match="illegal memory access"):
        running.result()
    with pytest.raises(DeviceFailed):
        engine.start(_decoded())


def _decoded() -> CellBatch:
    slots, steps = np.arange(1, 4, dtype=np.int32), np.ones(3, np.int32)
    tokens = {"token": np.zeros((3, 2), np.int32)}
    return CellBatch("decode", slots[:, None], slots, tokens, steps, steps.astype(np.bool_), 2)
