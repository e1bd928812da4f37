"""Models made of cells through a real broker and workers: each sequence gets what it gets alone, or an error alone."""

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from penstock.engine.cells.models.loading import save_cells
from penstock.ops.kafka import KafkaBroker
from penstock.producer import BackendError, Client, EmptyInput, InvalidRequest, UnsupportedTask
from tests.integration.conftest import StartWorker, Unique

VOCAB, WORDS, WIDTH, LABELS, LAYERS = 50, 8, 16, 4, 2
OWN_CELLS = '''
"""Sums of a list of values. The value 666 is rejected by the step, 777 makes NaN, and a word is rejected by `unfold`.

A decoder that counts from a number down, and stops at 0: from a number below 0 it never stops.
"""

import torch

from penstock.engine.cells.contract import Cell, CellSpec, StateSpec
from penstock.engine.cells.models.model import CellModel

SUM = StateSpec("sum", 1)


def step(states, inputs):
    if (inputs["value"] == 666).any():
        raise ArithmeticError("a bad value")
    new = states["sum"] + torch.where(inputs["value"] == 777, torch.nan, inputs["value"])[:, None]
    return {"sum": new}, {"sum": new}


def count_down(states, inputs):
    return states, {"left": inputs["number"][:, None] - 1}


def unfold(request, graph):
    if "reads" in request:
        for reads in request["reads"]:
            graph.add("sum", reads=reads, value=[1])
    elif "number" in request:
        graph.add("count", steps=request["steps"], number=[request["number"]])
    else:
        graph.add("sum", value=[int(value) for value in request["values"]])


def sums():
    left = StateSpec("left", 1, torch.int32)
    loop = {"feedback": {"number": "left"}, "stop": {"left": 0}}
    decoder = CellSpec("count", (SUM,), ("number",), emits=(left,), max_rows=32, max_steps=8, **loop)
    adder = CellSpec("sum", (SUM,), ("value",), emits=(SUM,), max_rows=32)
    return CellModel.of([Cell(adder, step), Cell(decoder, count_down)], unfold)
'''


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, nn.Module]]:
    """A random LSTM classifier and its modules."""
    torch.manual_seed(3)
    parts: dict[str, nn.Module] = {
        "embedding": nn.Embedding(VOCAB, WORDS),
        "lstm": nn.LSTM(WORDS, WIDTH, LAYERS, batch_first=True),
        "output": nn.Linear(WIDTH, LABELS),
    }
    sizes = {"vocab_size": VOCAB, "embedding_size": WORDS, "hidden_size": WIDTH, "num_layers": LAYERS}
    directory = tmp_path_factory.mktemp("lstm")
    save_cells(directory, {"model_type": "lstm_classifier", **sizes, "num_labels": LABELS}, **parts)
    return directory, parts


@torch.no_grad()
def scores_of(parts: dict[str, nn.Module], tokens: list[int]) -> np.ndarray[Any, Any]:
    hidden, _ = parts["lstm"](parts["embedding"](torch.tensor([tokens])))
    return parts["output"](hidden[:, -1]).softmax(1).numpy()  # type: ignore[no-any-return]  # torch's


async def test_a_classifier_gives_the_scores_of_nn_lstm(
    kafka: KafkaBroker,
    unique: Unique,
    start_worker: StartWorker,
    classifier: tuple[Path, dict[str, nn.Module]],
    tmp_path: Path,
) -> None:
    directory, parts = classifier
    model, cache = unique("lstm"), tmp_path / "cache.sqlite"
    worker = start_worker(kafka, model=directory, served_name=model, cache_path=cache, device="cpu")
    chance = np.random.default_rng(1)
    texts = [chance.integers(0, VOCAB, length).tolist() for length in (1, 2, 3, 9, 40, 200, 17, 1)]
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300) as client:
        await worker.ready()
        rows = await client.sequence([{"tokens": np.array(text)} for text in texts])
        for text, row in zip(texts, rows, strict=True):
            assert row.keys() == {"scores"}
            np.testing.assert_allclose(row["scores"], scores_of(parts, text), atol=1e-5)
        again = await client.sequence([{"tokens": text} for text in texts])  # from the cache
        for row, other in zip(rows, again, strict=True):
            np.testing.assert_array_equal(row["scores"], other["scores"])
        with pytest.raises(EmptyInput, match="'tokens' is empty"):
            await client.sequence([{"tokens": []}])
        with pytest.raises(InvalidRequest, match=r"must be in \[0, 50\)"):
            await client.sequence([{"tokens": [VOCAB]}])
        with pytest.raises(UnsupportedTask):
            await client.embed(ids=[[1, 2]])


async def test_sequences_of_own_cells_fail_alone(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three state slots for forty sequences: all but three wait, and none is lost."""
    (tmp_path / "own_cells.py").write_text(OWN_CELLS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    model = unique("sums")
    worker = start_worker(kafka, model=model, cells="own_cells:sums", state_slots=3, device="cpu")
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300) as client:
        await worker.ready()
        good: list[dict[str, Any]] = [{"values": list(range(length))} for length in range(1, 41)]
        bad: list[dict[str, Any]] = [{"values": [1, 666]}, {"values": []}, {"values": "word"}, {"other": 1}]
        results, failed = await asyncio.gather(
            client.map("sequence", good), asyncio.gather(*[client.map("sequence", [one]) for one in bad])
        )
        for length, row in enumerate(results, 1):
            assert isinstance(row, dict)
            np.testing.assert_array_equal(row["sum"][:, 0], np.cumsum(np.arange(length)))
        (raised, empty, word, missing) = [errors[0] for errors in failed]
        assert isinstance(raised, BackendError)
        assert "a bad value" in raised.message
        assert isinstance(empty, EmptyInput)
        assert type(word) is type(missing) is InvalidRequest
        assert "ValueError" in word.message
        chain, cyclic = await client.map("sequence", [{"reads": [[-1], [0], [1]]}, {"reads": [[1], [0]]}])
        assert isinstance(chain, dict)
        assert chain["sum"].ravel().tolist() == [1, 2, 3]
        assert isinstance(cyclic, InvalidRequest)
        assert "CyclicGraph: the graph has a cycle" in cyclic.message
        odd: list[dict[str, Any]] = [
            {"values": [1, 777, 2]},
            {"number": -1, "steps": 500},
            {"number": 3, "steps": 500},
        ]
        nan, endless, stopped = await client.map("sequence", odd)
        assert isinstance(nan, BackendError)
        assert "NaN" in nan.message
        assert isinstance(endless, dict)
        assert endless["left"].ravel().tolist() == list(range(-2, -502, -1))
        assert isinstance(stopped, dict)
        assert stopped["left"].ravel().tolist() == [2, 1, 0]
        for wrong, message in (
            ({"reads": [[-1], [-1]]}, "DisconnectedGraph: the graph has 2 parts"),
            ({"reads": [[node - 1] for node in range(1100)]}, "GraphTooLarge: the graph is 1100 nodes deep"),
            ({"reads": [[node - 1] for node in range(4097)]}, "a list of more than 4096 items"),
            ({"number": -1, "steps": 9000}, "GraphTooLarge: the request has 9000 steps"),
            ({"reads": [[-1], [0], [0], [0], [0]]}, "GraphTooLarge: the request needs"),  # more slots than there are
        ):
            (error,) = await client.map("sequence", [wrong])
            assert isinstance(error, InvalidRequest)
            assert message in error.message
        mixed = await client.map("sequence", [good[3], bad[0], good[5], bad[2]])
        assert [isinstance(row, dict) for row in mixed] == [True, False, True, False]
