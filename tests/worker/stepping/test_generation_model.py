"""A model that generates, as a worker loads it for a GPU: limits, graphs, steps of a task, and its tokens."""

import asyncio
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import structlog
import torch

import penstock.engine
from penstock.engine import GenerationModel
from penstock.engine.errors import UnsupportedCheckpoint
from penstock.engine.gpu.generation import seq2seq
from penstock.engine.gpu.generation.device_search import GpuSearch
from penstock.engine.loading import generation as loading_module
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.model_loading import load_model
from penstock.worker.resolved_settings import resolve
from penstock.worker.settings import WorkerSettings
from penstock.worker.stepping.contract import StepJob
from penstock.worker.stepping.generation_model import served_generation
from penstock.worker.stepping.generation_work import GenerationWork, read_generation_row
from tests.engine.generation.helpers import expected, save_seq2seq, sources
from tests.engine.helpers import write_json

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], int]]:
    """A GPU that is a CPU. The quanta and rows for which it was asked to prepare graphs."""
    found: list[tuple[list[int], int]] = []

    def prepare(self: GpuSearch, options: Any, quanta: Sequence[int], max_requests: int, budget_s: float) -> None:
        assert budget_s <= 10
        found.append((list(quanta), max_requests))

    monkeypatch.setattr(penstock.engine, "choose_device", lambda wanted: "cuda", raising=False)
    monkeypatch.setattr(loading_module, "choose_device", lambda wanted: "cuda")
    monkeypatch.setattr(loading_module, "device_name", lambda: "Some GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 26, 1 << 40))
    monkeypatch.setattr(seq2seq, "GpuSeq2Seq", partial(seq2seq.GpuSeq2Seq, device="cpu"))
    monkeypatch.setattr(GpuSearch, "prepare", prepare)
    return found


def load(directory: Path, **settings: Any) -> tuple[GenerationModel, WorkerSettings]:
    given = WorkerSettings.model_validate({"model": str(directory), **settings})
    loaded = load_model(given)
    assert isinstance(loaded, GenerationModel)
    return loaded, given


def test_limits_are_those_that_the_settings_in_force_name(tmp_path: Path) -> None:
    save_seq2seq(tmp_path, "t5")
    loaded, given = load(tmp_path)
    settings = resolve(given, loaded.info)
    assert (settings.device, settings.dtype) == ("cuda", "bfloat16")
    assert (settings.max_batch_sequences, settings.max_batch_tokens) == (1024, 16_384)
    assert (loaded.limits.max_rows, loaded.limits.max_encode_tokens) == (1024, 16_384)
    loaded, _ = load(tmp_path, max_batch_sequences=5, max_batch_tokens=77)
    assert (loaded.limits.max_rows, loaded.limits.max_encode_tokens) == (5, 77)


@pytest.mark.parametrize("dtype", ["float32", "auto"])
async def test_it_is_served_in_tasks_of_up_to_eight_steps(
    tmp_path: Path, prepared: list[tuple[list[int], int]], dtype: str
) -> None:
    reference = save_seq2seq(tmp_path, "t5")
    loaded, _ = load(tmp_path, dtype=dtype, max_batch_sequences=8)
    with structlog.testing.capture_logs() as logs:
        served = served_generation(loaded, "deadline")()
    assert [log["event"] for log in logs] == ["steps_timed"]
    assert prepared == ([] if dtype == "float32" else [([1, 2, 4, 8], 8)])
    events: asyncio.Queue[JobEvents] = asyncio.Queue()
    thread = served._thread  # type: ignore[attr-defined]  # of StepModel
    thread.start(events.put_nowait, lambda error: pytest.fail(repr(error)))
    batch, now = sources([4, 9, 1, 7, 12, 3, 5, 6]), time.monotonic()
    options = loaded.options({"max_new_tokens": 12})
    thread.put([StepJob(id, GenerationWork(source, options, 0), now, None, False) for id, source in enumerate(batch)])
    tokens: dict[int, list[int]] = {}
    quanta: list[int] = []
    async with asyncio.timeout(300):
        while len(tokens) < len(batch):
            told = await events.get()
            tokens |= {id: list(read_generation_row(row).tokens) for id, row in told.finished}
            quanta += [told.stats.sums.longest] if told.stats is not None else []
    assert max(quanta) == 8
    if dtype == "float32":
        assert [tokens[id] for id in range(len(batch))] == [expected(reference, s, max_new_tokens=12) for s in batch]
    assert await served.close(60.0)


def test_a_model_without_finite_scores_is_refused_by_its_name_before_it_serves(tmp_path: Path) -> None:
    save_seq2seq(tmp_path, "t5")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    write_json(tmp_path / "config.json", config | {"layer_norm_epsilon": -1000.0})
    loaded, _ = load(tmp_path, served_name="broken")
    with pytest.raises(UnsupportedCheckpoint, match=r"broken: its scores hold NaN or infinity.*overflow in bfloat16"):
        served_generation(loaded, "deadline")
