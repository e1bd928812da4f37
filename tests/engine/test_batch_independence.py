"""A result on a CPU is the same bytes in any batch: each operation, and whole models."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from penstock.engine import TaskOptions
from penstock.engine.cpu.linear import OneDnnLinear
from penstock.engine.model import dense, row_counts
from penstock.engine.model.dense import HAS_ONEDNN, activate, by_vectors, linear_by_row
from penstock.engine.model.weights import Dense
from tests.engine.helpers import (
    BFLOAT16,
    INT8,
    cpu_engine,
    needs_bfloat16,
    pack,
    random_sequences,
    save_classifier,
    save_encoder,
    save_tagger,
)
from tests.examples import examples

DTYPES = ("float32", BFLOAT16)
SIZES = (1, 2, 7, 10, 18, 65, 300)
SHAPES = ((384, 1536), (1536, 384), (48, 57), (768, 3072), (1024, 4096), (4096, 1024))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_ONEDNN, reason="this build of torch has no oneDNN")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "depth"), SHAPES)
def test_a_product_and_a_sum_of_a_row_do_not_depend_on_the_others(width: int, depth: int, dtype: str) -> None:
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    linear = OneDnnLinear(Dense(torch.randn(width, depth) / 20, torch.randn(width), "gelu"), kind)
    x, residual = torch.randn(301, depth).to(kind), torch.randn(301, width).to(kind)
    product, total = linear(x), linear.plus(x, residual)
    for size in SIZES:
        for first in (0, 1, 301 - size):
            rows = slice(first, first + size)
            assert torch.equal(linear(x[rows]), product[rows])
            assert torch.equal(linear.plus(x[rows], residual[rows]), total[rows])


@pytest.mark.parametrize(
    "way",
    [
        lambda rows: torch.zeros(rows),
        lambda rows: torch.full((rows,), float(7 <= rows <= 17)),
        lambda rows: torch.full((rows,), float((rows >= 16) + (rows >= 49) + (rows >= 65))),
        lambda rows: torch.full((rows,), float(rows % 64 == 0)),
        lambda rows: torch.arange(rows) % 3,
    ],
    ids=["one way", "few rows", "four ways", "whole blocks", "by place"],
)
def test_a_product_that_rounds_by_the_number_of_rows_is_computed_in_numbers_that_agree(
    way: Callable[[int], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(kind: row_counts.ProductKind, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        exact = torch.stack([weight.double() @ row.double() for row in x])
        return (exact + way(len(x))[:, None]).float()

    monkeypatch.setattr(row_counts, "_run", run)
    row_counts._agreeing_counts.cache_clear()
    try:
        torch.manual_seed(0)
        x, weight = torch.randn(600, 8), torch.randn(3, 8)
        expected = row_counts.product_by_row(x, weight, None, 3, is_reordered=False)
        assert expected.shape == (600, 3)
        for size in (0, 1, 2, 7, 16, 17, 49, 64, 65, 300, 599):
            for rows in (slice(0, size), slice(600 - size, 600)):
                one = row_counts.product_by_row(x[rows], weight, None, 3, is_reordered=False)
                assert torch.equal(one, expected[rows])
    finally:
        row_counts._agreeing_counts.cache_clear()


@needs_bfloat16
@pytest.mark.skipif(not HAS_ONEDNN, reason="this build of torch has no oneDNN")
def test_the_residual_is_added_to_the_product_and_not_within_it() -> None:
    """With AMX a fused addition depends on the number of rows, which other processors do not show."""
    torch.manual_seed(0)
    linear = OneDnnLinear(Dense(torch.randn(64, 48), torch.randn(64), "identity"), torch.bfloat16)
    x, residual = torch.randn(9, 48).bfloat16(), torch.randn(9, 64).bfloat16()
    assert torch.equal(linear.plus(x, residual), linear(x) + residual)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(dense._ACTIVATIONS))
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_an_activation_does_not_depend_on_the_place_of_a_value(name: str, dtype: str, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        values = torch.linspace(-9, 9, 4999).to(getattr(torch, dtype))
        expected = activate(values.clone(), name)
        for first, count in ((0, 1), (4998, 1), (17, 40), (2, 3001)):
            assert torch.equal(activate(values[first : first + count].clone(), name), expected[first : first + count])
        many = activate(values.repeat(41), name).view(41, -1)  # threads share it
        assert torch.equal(many, expected.expand(41, -1))
    finally:
        torch.set_num_threads(before)


def test_a_sigmoid_does_not_depend_on_the_place_of_a_value() -> None:
    values = torch.linspace(-9, 9, 1001)
    expected = by_vectors(torch.sigmoid_, values.clone())
    alone = [by_vectors(torch.sigmoid_, one.clone()) for one in torch.split(values, 1)]
    assert torch.equal(torch.cat(alone), expected)
    assert torch.allclose(expected, torch.sigmoid(values))


@pytest.mark.parametrize(("width", "depth"), [(3, 384), (9, 768), (768, 768), (1, 1024)])
@pytest.mark.parametrize("activation", ["identity", "tanh", "gelu"])
def test_a_heads_layer_does_not_depend_on_the_other_rows(activation: str, width: int, depth: int) -> None:
    torch.manual_seed(0)
    x, weight, bias = torch.randn(300, depth), torch.randn(width, depth) / 20, torch.randn(width)

    def layer(rows: Tensor) -> Tensor:
        return F.softmax(activate(linear_by_row(rows, weight, bias), activation), dim=1)

    expected = layer(x)
    for size in SIZES:
        assert torch.equal(layer(x[-size:]), expected[-size:])


FAMILIES = ("bert", "mpnet", "deberta-v2", "modernbert", "eurobert", "gemma3_text", "mistral", "qwen3")
MODELS: list[tuple[str, Any, dict[str, Any]]] = [(family, save_encoder, {}) for family in FAMILIES]
MODELS += [("bert", save_classifier, {"num_labels": 77}), ("bert", save_tagger, {})]
MODELS += [("qwen3", save_classifier, {"num_labels": 3, "pad_token_id": 7}), ("eurobert", save_classifier, {})]
MODELS += [("bart", save_classifier, {"num_labels": 3})]
MODELS += [("bert", save_classifier, {"problem_type": "multi_label_classification"})]
LENGTHS = (1, 2, 3, 3, 3, 16, 33, 64, 64, 65, 66, 66, 66, 130, *[7] * 9, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("family", "save", "config"), MODELS)
def test_a_models_result_does_not_depend_on_its_batch(
    tmp_path: Path, family: str, save: Any, config: dict[str, Any], dtype: str
) -> None:
    save(tmp_path, family, **config)
    engine, sequences = cpu_engine(tmp_path, dtype), random_sequences(LENGTHS)
    for task in sorted(engine.info.tasks):
        for pooling in ("cls", "mean", "max", "last") if task == "embed" else (None,):
            options = TaskOptions(task, pooling)
            alone = [engine.run(pack([sequence], options)).rows[0].tobytes() for sequence in sequences]
            for order in (sequences, sequences[::-1], sequences[::2] * 3):
                rows = engine.run(pack(order, options)).rows
                known = {id(sequence): row for sequence, row in zip(sequences, alone, strict=True)}
                assert [row.tobytes() for row in rows] == [known[id(sequence)] for sequence in order]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*DTYPES, INT8])
def test_real_weights_give_equal_bytes_in_any_batch(minilm: str, dtype: str) -> None:
    engine = cpu_engine(Path(minilm), dtype)
    rng = np.random.default_rng(0)
    sequences = [rng.integers(999, 30_000, length, dtype=np.int32) for length in rng.integers(2, 90, 40)]
    alone = [engine.run(pack([sequence])).rows[0].tobytes() for sequence in sequences]

    @settings(max_examples=examples(20))
    @given(st.lists(st.integers(0, 39), min_size=1, max_size=40))
    def check(chosen: list[int]) -> None:
        rows = engine.run(pack([sequences[index] for index in chosen])).rows
        assert [row.tobytes() for row in rows] == [alone[index] for index in chosen]

    check()
