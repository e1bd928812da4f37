"""Cells of models on a GPU: those that read tokens run by fused kernels, beside the torch code of the others."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from penstock.engine.cells.contract import Cell
from penstock.engine.cells.models.layers import weights_of
from penstock.engine.cells.models.loading import load_cells, save_cells
from penstock.engine.cells.models.lstm import lstm_classifier, lstm_language_model, lstm_seq2seq
from penstock.engine.cells.models.model import CellModel
from penstock.engine.gpu.cells import lstm, step_engine
from penstock.engine.gpu.cells.lstm import LstmCell, fused
from penstock.engine.gpu.cells.step_engine import GpuStepEngine
from penstock.engine.gpu.graphs import Graphs
from penstock.engine.loading import cells as loading_module
from penstock.engine.loading.cells import load_served_cells
from penstock.worker.stepping.cell_runner import CellRunner
from tests.engine.cells.loop import RandomLoop, run_all
from tests.engine.gpu import lstm_reference
from tests.engine.gpu.fake_cuda import FakeCuda

VOCAB, WORDS, WIDTH = 30, 24, 16
HALF = torch.float16


@pytest.fixture(autouse=True)
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    """Fakes of CUDA, and the kernels in plain torch."""
    for kernel in ("lstm_begin", "lstm_step", "short_lstm_step"):
        monkeypatch.setattr(lstm, kernel, getattr(lstm_reference, kernel))
    return FakeCuda(monkeypatch)


def parts(words: int = WORDS, width: int = WIDTH, layers: int = 2) -> Any:
    torch.manual_seed(0)
    return weights_of(
        embedding=nn.Embedding(VOCAB, words), lstm=nn.LSTM(words, width, layers), output=nn.Linear(width, VOCAB)
    )


def seq2seq() -> CellModel:
    torch.manual_seed(0)
    weights = weights_of(
        encoder=nn.LSTM(WORDS, WIDTH),
        decoder=nn.LSTM(WORDS, WIDTH),
        encoder_embedding=nn.Embedding(VOCAB, WORDS),
        decoder_embedding=nn.Embedding(VOCAB, WORDS),
        output=nn.Linear(WIDTH, VOCAB),
    )
    return lstm_seq2seq(weights, start_token=0, end_token=3, dtype=HALF, max_rows=8)


def names_of_fused(model: CellModel) -> list[str]:
    return [cell.spec.name for cell in map(fused, model.cells) if isinstance(cell, LstmCell)]


def answers(model: CellModel, requests: list[dict[str, Any]], cells: list[Cell | LstmCell]) -> list[Any]:
    """The values that the cells emit for each request, whatever the batches are."""
    loop = RandomLoop(model, num_slots=12, seed=3, engine=GpuStepEngine(cells, 12, device="cpu"))
    for id, request in enumerate(requests):
        loop.add(id, request)
    loop.run()
    return [loop.results[id] for id in range(len(requests))]


@pytest.mark.parametrize("is_folded", [True, False])
@pytest.mark.parametrize("kind", ["classifier", "seq2seq"])
def test_a_model_gives_the_same_by_kernels_and_by_torch(
    kind: str, is_folded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_folded:
        monkeypatch.setattr(lstm, "_MOST_FOLDED_BYTES", 0)
    model = lstm_classifier(parts(), dtype=HALF, max_rows=8) if kind == "classifier" else seq2seq()
    rng = np.random.default_rng(1)
    more = {} if kind == "classifier" else {"max_tokens": 6}
    requests = [{"tokens": rng.integers(0, VOCAB, length).tolist()} | more for length in (1, 20, 7, 3, 12, 9)]
    cells = [fused(cell) for cell in model.cells]
    assert [isinstance(cell, LstmCell) for cell in cells] == [True, False]
    for ours, torchs in zip(answers(model, requests, cells), answers(model, requests, list(model.cells)), strict=True):
        assert ours.keys() == torchs.keys()
        for name in ours:
            np.testing.assert_allclose(ours[name], torchs[name], atol=2e-3)


def test_cells_that_no_kernel_supports_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert names_of_fused(lstm_language_model(parts(), end_token=3, dtype=HALF)) == ["read"]
    assert names_of_fused(lstm_language_model(parts(), end_token=3)) == []  # float32
    assert names_of_fused(lstm_classifier(parts(width=12), dtype=HALF)) == []
    assert names_of_fused(lstm_classifier(parts(words=5), dtype=HALF)) == ["read"]  # folded: words are not read
    monkeypatch.setattr(lstm, "_MOST_FOLDED_BYTES", 0)
    assert names_of_fused(lstm_classifier(parts(words=5), dtype=HALF)) == []


def test_an_idle_engine_captures_what_is_due_and_nothing_else(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    model = lstm_classifier(parts(), dtype=HALF, max_rows=8)
    engine = GpuStepEngine(model.cells, 12, device="cpu")
    captured: list[str] = []

    def capture(self: Any, shape: Any, work: Any) -> None:
        captured.append(shape.cell)
        if shape.cell == "classify":
            raise RuntimeError("CUDA error: capture")

    monkeypatch.setattr("penstock.engine.gpu.graphs.Graphs._capture", capture)
    assert not engine.idle()
    for _ in range(2):
        loop = RandomLoop(model, num_slots=12, quantum=4, engine=engine)
        loop.add(0, {"tokens": [1, 2, 3, 4]})
        loop.run()
    runner = CellRunner(model.specs, engine)
    while runner.idle():
        pass
    assert set(captured) == {"read", "classify"}
    assert not engine.is_capture_due


def test_a_served_model_is_fused_and_its_graphs_are_captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "embedding_size": WORDS, "hidden_size": WIDTH, "num_layers": 1, "num_labels": 4}
    modules = {"embedding": nn.Embedding(VOCAB, WORDS), "lstm": nn.LSTM(WORDS, WIDTH), "output": nn.Linear(WIDTH, 4)}
    save_cells(tmp_path, {"model_type": "lstm_classifier", **sizes}, **modules)

    def capture(self: Graphs[object], shape: object, work: Any) -> None:
        self._captured[shape] = SimpleNamespace(replay=work), work()  # type: ignore[assignment]  # a fake

    monkeypatch.setattr(Graphs, "_capture", capture)
    monkeypatch.setattr(loading_module, "choose_device", lambda wanted: "cuda")
    monkeypatch.setattr(loading_module, "device_name", lambda: "Some GPU")
    monkeypatch.setattr(step_engine, "GpuStepEngine", partial(GpuStepEngine, device="cpu"))
    monkeypatch.setattr(nn.Module, "to", lambda self, device: self)
    monkeypatch.setattr(step_engine, "time", SimpleNamespace(perf_counter=lambda: 0.0))  # of a budget that never ends
    served = load_served_cells(str(tmp_path), max_rows=8, num_slots=11)
    assert (served.info.device, served.info.dtype) == ("Some GPU", "float16")
    engine: Any = served.engine()
    assert {name: type(quantum).__name__ for name, quantum in engine._quanta.items()} == {
        "read": "LstmQuantum",
        "classify": "TorchQuantum",
    }
    assert engine.num_graphs == 10 + 1  # of one bucket of rows: quanta of 1, 2, 4, 8, 12 to 32, and of `classify` 1
    requests = [{"tokens": [*range(1, length)]} for length in (3, 9, 26)]
    exact = run_all(load_cells(tmp_path).model, requests)
    for ours, theirs in zip(run_all(served.model, requests, num_slots=12, engine=engine), exact, strict=True):
        np.testing.assert_allclose(ours["scores"], theirs["scores"], atol=5e-3)
