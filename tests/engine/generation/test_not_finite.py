"""Weights and scores that are not finite: a checkpoint is refused by name, and a request ends without its others."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from penstock.engine.errors import UnsupportedDevice
from penstock.engine.generation.generator import Generator
from penstock.engine.generation.loading import Seq2SeqCheckpoint, load_seq2seq
from penstock.engine.gpu.generation.seq2seq import GpuSeq2Seq
from penstock.engine.loading.generation import load_generation_model
from tests.engine.generation.helpers import SMALL, VOCAB, drain, generate, save_seq2seq, sources
from tests.engine.helpers import edited_tensors

pytestmark = pytest.mark.slow

POISON = VOCAB - 1  # a token whose embedding is finite, and overflows in the encoder's first product
WAYS: tuple[dict[str, Any], ...] = (
    {"max_new_tokens": 7},
    {"max_new_tokens": 7, "num_beams": 3},
    {"max_new_tokens": 7, "do_sample": True, "top_k": 5},
)


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory: pytest.TempPathFactory) -> Seq2SeqCheckpoint:
    directory = tmp_path_factory.mktemp("marian")
    save_seq2seq(directory, "marian-untied")
    set_value(directory, "model.encoder.embed_tokens.weight", POISON, 3e38)
    return load_seq2seq(str(directory))


def set_value(directory: Path, name: str, row: int, value: float) -> None:
    with edited_tensors(directory) as tensors:
        tensors[name][row] = value


@pytest.mark.parametrize("searches", [False, True], ids=["chosen here", "chosen by the device"])
@pytest.mark.parametrize("way", range(len(WAYS)), ids=["greedy", "beams", "sampling"])
def test_scores_that_are_not_finite_end_their_request_alone(
    overflowing: Seq2SeqCheckpoint, way: int, searches: bool
) -> None:
    options, batch = overflowing.options(**WAYS[way]), sources([6, 3, 9, 4])
    batch[2][5] = POISON
    weights = overflowing.weights
    device = GpuSeq2Seq(weights, SMALL, device="cpu", dtype=torch.float32) if searches else None
    generator = Generator(weights, SMALL, device=device)
    for id, source in enumerate(batch):
        generator.start(id, source, options)
    finishes: dict[int, str | None] = {}
    tokens: dict[int, list[int]] = {}
    while generator.waiting or generator.active:
        for progress in generator.step(2):
            tokens.setdefault(progress.id, []).extend(progress.tokens)
            finishes[progress.id] = progress.finish
    assert finishes.pop(2) == "invalid"
    assert set(finishes) == {0, 1, 3}
    assert set(finishes.values()) <= {"stop", "length"}
    assert tokens[2] == []
    for id in finishes:
        assert tokens[id] == generate(overflowing, [batch[id]], **WAYS[way])[0]
    for id in finishes:
        generator.start(id, batch[id], options)  # takes the pages
    assert drain(generator) == {id: tokens[id] for id in finishes}
    assert generator.num_free_pages == SMALL.num_pages


@pytest.mark.parametrize(
    ("family", "tensor"),
    [
        ("bart", "model.shared.weight"),
        ("marian", "model.shared.weight"),
        ("t5", "encoder.block.0.layer.0.SelfAttention.q.weight"),
        ("t5", "decoder.block.1.layer.1.EncDecAttention.q.weight"),
    ],
)
def test_weights_that_overflow_once_scaled_are_refused_by_name(tmp_path: Path, family: str, tensor: str) -> None:
    save_seq2seq(tmp_path, family)
    set_value(tmp_path, tensor, 3, -2e38)
    with pytest.raises(UnsupportedDevice, match=rf"'{re.escape(tensor)}' .*overflows in float32"):
        load_generation_model(str(tmp_path), device="cpu")
    set_value(tmp_path, tensor, 3, 5e37)  # times sqrt(32) is finite
    load_generation_model(str(tmp_path), device="cpu")


def test_weights_that_overflow_in_float16_once_scaled_are_refused_by_name(tmp_path: Path) -> None:
    save_seq2seq(tmp_path, "marian")
    set_value(tmp_path, "model.shared.weight", 3, 60_000.0)  # which float16 has, and not 60,000 * sqrt(32)
    tensors = load_seq2seq(str(tmp_path)).tensors
    tensors.require_range(torch.bfloat16)
    with pytest.raises(UnsupportedDevice, match=r"'model\.shared\.weight' .*overflows in float16.*bfloat16"):
        tensors.require_range(torch.float16)
