"""The loss of a precision: figures of vectors, neighbours, scores and labels, and their way to a file and back."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine import measure_loss
from penstock.engine.precision_loss import PrecisionLoss, neighbours_kept
from tests.engine.helpers import INT8, cpu_engine, random_sequences, save_classifier, save_encoder

SEQUENCES = [(ids, None) for ids in random_sequences([5, 3, 9, 12, 4, 30, 7, 8, 2, 11, 6, 14])]
_SIZE = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4}


@given(st.integers(11, 40), st.integers(2, 30), st.integers(0, 1000))
def test_equal_vectors_keep_all_neighbours_and_others_those_by_chance(count: int, dim: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).normal(size=(count, dim))
    assert neighbours_kept(vectors, vectors) == 1
    assert neighbours_kept(3 * vectors, vectors) == 1
    others = np.random.default_rng(seed + 1).normal(size=(count, dim))
    assert 0 <= neighbours_kept(others, vectors) <= 1


def test_neighbours_are_counted_beside_the_exact_ones() -> None:
    """On a circle of 40, two opposite ones change places: they keep none, and ten others of each lose one of ten."""
    angles = np.linspace(0, 2 * np.pi, 40, endpoint=False)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    swapped = circle.copy()
    swapped[[0, 20]] = circle[[20, 0]]
    assert neighbours_kept(swapped, circle) == pytest.approx((40 - 2 - 20 / 10) / 40)


def test_of_equal_texts_any_is_as_near() -> None:
    vectors = np.repeat(np.random.default_rng(0).normal(size=(3, 8)), 12, axis=0)
    ours = vectors + np.random.default_rng(1).normal(size=vectors.shape) * 1e-4
    assert neighbours_kept(ours, vectors) == 1


@pytest.mark.parametrize("dtype", ["float32", INT8])
def test_a_models_loss_is_of_its_tasks(tmp_path: Path, dtype: str) -> None:
    save_encoder(tmp_path / "encoder", "bert", **_SIZE)
    save_classifier(tmp_path / "classifier", "bert", **_SIZE)
    of_vectors, of_scores = (
        measure_loss(cpu_engine(tmp_path / kind, dtype), cpu_engine(tmp_path / kind), SEQUENCES)
        for kind in ("encoder", "classifier")
    )
    assert of_vectors.num_sequences == len(SEQUENCES)
    assert (of_vectors.score, of_vectors.labels_changed) == (None, None)
    assert of_vectors.cosine is not None
    assert of_scores.score is not None
    if dtype == "float32":
        assert of_vectors.cosine == pytest.approx(1, abs=1e-9)
        assert (of_vectors.kept, of_scores.score, of_scores.labels_changed) == (1, 0, 0)
        assert not of_vectors.excess() + of_scores.excess()
    else:
        assert 0.99 < of_vectors.cosine < 0.99999
        assert 0 < of_scores.score < 1


def test_few_sequences_have_no_neighbours(tmp_path: Path) -> None:
    save_encoder(tmp_path, "bert")
    assert measure_loss(cpu_engine(tmp_path), cpu_engine(tmp_path), SEQUENCES[:10]).kept is None


def test_figures_are_read_as_they_were_written_and_others_are_not() -> None:
    loss = PrecisionLoss(31, cosine=0.9995, labels_changed=2)
    assert PrecisionLoss.from_dict(dict(loss.to_dict())) == loss
    for damaged in (
        {},
        {**loss.to_dict(), "cosine": "1"},
        {**loss.to_dict(), "x": 1},
        {**loss.to_dict(), "num_sequences": None},
    ):
        assert PrecisionLoss.from_dict(damaged) is None
