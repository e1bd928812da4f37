"""`penstock worker` with models of many steps on a GPU: their answers are those of the CPU."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from penstock.engine.cells.models.loading import load_cells, save_cells
from penstock.ops.kafka import MockBroker
from penstock.producer import Client
from tests.engine.cells.loop import run_all
from tests.engine.generation.helpers import expected, save_seq2seq, sources
from tests.gpu.test_generation import WIDE, log_probabilities
from tests.gpu.test_worker_command import READY_S, WORKER, events

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
VOCAB, WIDTH = 40, 64
TEXTS = [np.arange(1, 2 + 5 * place) % VOCAB for place in range(6)]  # of 1 to 26 tokens


@asynccontextmanager
async def served(folder: Path, *options: str) -> AsyncIterator[Client]:
    """A worker of the model in `folder`, which drains at the end. Its log is beside the folder."""
    log = folder.with_suffix(".jsonl")
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    with MockBroker() as broker, log.open("wb") as output:
        worker = await asyncio.create_subprocess_exec(
            *(*WORKER, "--model", str(folder), "--device", DEVICE, "--log-format", "json", "--processes", "1"),
            *("--bootstrap-servers", broker.bootstrap_servers, "--fetch-max-wait-ms", "5", *options),
            env={**outside, "XDG_CACHE_HOME": str(folder.parent)},
            stderr=output,
        )
        try:
            async with Client(
                bootstrap_servers=broker.bootstrap_servers, model=folder.name, timeout_s=READY_S, fetch_max_wait_ms=5
            ) as client:
                yield client
            worker.terminate()
            assert await worker.wait() == 0
        except BaseException:
            print(f"The worker's exit code: {worker.returncode}. The end of its log:")
            print(log.read_text(errors="replace")[-8000:])
            raise
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()


def assert_logged(folder: Path, dtype: str, cells: set[str]) -> None:
    """The log says what ran, and nothing failed."""
    log = folder.with_suffix(".jsonl")
    (loaded,), (settings,) = events(log, "model_loaded"), events(log, "settings_resolved")
    assert loaded["dtype"] == settings["dtype"] == dtype
    assert settings["device"] == DEVICE
    assert (loaded["device"] == "cpu") == (DEVICE == "cpu")
    assert {batch["partition"] for batch in events(log, "batch_done")} == cells
    assert events(log, "batch_failed") == []
    assert [event["unfinished"] for event in events(log, "drained")] == [0]


@pytest.mark.parametrize("num_beams", [1, 4])
async def test_tokens_in_float32_are_those_of_generate(tmp_path: Path, num_beams: int) -> None:
    """The worker's default number of rows is for halves: in float32 torch computes what kernels would."""
    folder = tmp_path / "t5"
    model = save_seq2seq(folder, "t5", **WIDE["t5"])
    batch = sources([5, 33, 1, 17, 60, 8])
    options: dict[str, Any] = {"max_new_tokens": 12, "num_beams": num_beams}
    async with served(folder, "--dtype", "float32", "--max-batch-sequences", "16") as client:
        rows = await client.generate(ids=batch, **options)
        again = await client.generate(ids=batch[:2], no_repeat_ngram_size=2, **options)  # a rule of the host
    assert [list(row.tokens) for row in rows] == [expected(model, source, **options) for source in batch]
    assert [list(row.tokens) for row in again] == [
        expected(model, source, no_repeat_ngram_size=2, **options) for source in batch[:2]
    ]
    assert_logged(folder, "float32", {"encode", "decode"})


@pytest.mark.parametrize(("family", "dtype", "tolerance"), [("marian", "float16", 0.2), ("t5", "bfloat16", 0.6)])
async def test_tokens_in_halves_are_likely_in_float32(
    tmp_path: Path, family: str, dtype: str, tolerance: float
) -> None:
    """Many requests, so that quanta of several steps run, and shapes that were not captured at load."""
    folder = tmp_path / family
    model = save_seq2seq(folder, family, **WIDE[family])
    batch = sources(np.random.default_rng(0).integers(1, 60, 200).tolist())
    async with served(folder) as client:
        rows = await client.generate(ids=batch, max_new_tokens=12)
        again = await client.generate(ids=batch[:20], max_new_tokens=12)
    for source, row in zip(batch[:40], rows, strict=False):
        tokens = list(row.tokens)[:11]  # the last one may be forced
        scores = log_probabilities(model, source, [model.generation_config.decoder_start_token_id, *tokens])
        chosen = scores.gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert (scores.max(1).values - chosen).max() <= tolerance
    assert len(again) == 20
    assert_logged(folder, dtype, {"encode", "decode"})


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("auto", 1e-2)])
async def test_a_classifier_of_lstm_cells_gives_the_scores_of_the_cpu(
    tmp_path: Path, dtype: str, tolerance: float
) -> None:
    """In halves its tokens are read by the fused kernels, in float32 by torch."""
    folder = tmp_path / "classifier"
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "embedding_size": WIDTH, "hidden_size": WIDTH, "num_layers": 2}
    save_cells(
        folder,
        {"model_type": "lstm_classifier", **sizes, "num_labels": 4},
        embedding=nn.Embedding(VOCAB, WIDTH),
        lstm=nn.LSTM(WIDTH, WIDTH, 2),
        output=nn.Linear(WIDTH, 4),
    )
    requests = [{"tokens": tokens.tolist()} for tokens in TEXTS]
    exact = [outputs["scores"] for outputs in run_all(load_cells(folder).model, requests)]
    async with served(folder, "--dtype", dtype) as client:
        rows = await client.sequence(requests * 30)
    for row, scores in zip(rows, exact * 30, strict=True):
        np.testing.assert_allclose(row["scores"], scores, atol=tolerance)
    assert_logged(folder, "float16" if dtype == "auto" else dtype, {"read", "classify"})


async def test_a_language_model_of_lstm_cells_generates_the_tokens_of_the_cpu(tmp_path: Path) -> None:
    folder = tmp_path / "lm"
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "embedding_size": WIDTH, "hidden_size": WIDTH, "num_layers": 1}
    save_cells(
        folder,
        {"model_type": "lstm_lm", **sizes, "eos_token_id": 3},
        embedding=nn.Embedding(VOCAB, WIDTH),
        lstm=nn.LSTM(WIDTH, WIDTH),
        output=nn.Linear(WIDTH, VOCAB),
    )
    requests = [{"tokens": tokens.tolist(), "max_tokens": 9} for tokens in TEXTS]
    exact = [outputs["token"] for outputs in run_all(load_cells(folder).model, requests)]
    async with served(folder, "--dtype", "float32") as client:
        rows = await client.sequence(requests)
    for row, tokens in zip(rows, exact, strict=True):
        np.testing.assert_array_equal(row["token"], tokens)
    assert_logged(folder, "float32", {"read", "generate"})
