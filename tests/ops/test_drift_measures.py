"""Measures of drift against their definitions."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.ops.parity.drift_measures import score_drift, vector_drift
from penstock.ops.parity.recorded_answers import UnitVector


def unit_vectors(seed: int, rows: int, dim: int) -> list[UnitVector]:
    vectors = np.random.default_rng(seed).normal(size=(rows, dim))
    return list((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32))


def nearness(vectors: Sequence[UnitVector], row: int) -> dict[int, float]:
    return {index: float(vectors[row] @ other) for index, other in enumerate(vectors) if index != row}


def num_common(first: Sequence[UnitVector], second: Sequence[UnitVector], row: int) -> int:
    """The ten nearest of the first version that are as near as the ten nearest of the second, but for rounding."""
    near, there = nearness(first, row), nearness(second, row)
    chosen = sorted(near, key=near.__getitem__)[-10:]
    least = sorted(there.values())[-10:][0]
    return sum(there[index] >= least - 1e-5 for index in chosen)


@given(st.integers(0, 99), st.integers(2, 60))
def test_the_overlap_is_the_share_of_common_neighbours(seed: int, rows: int) -> None:
    first, second = unit_vectors(seed, rows, 16), unit_vectors(seed + 100, rows, 24)
    found, _ = vector_drift(first, second)
    common = sum(num_common(first, second, row) for row in range(rows))
    assert found.nearest == min(10, rows - 1)
    assert found.overlap == pytest.approx(common / (rows * found.nearest))


def test_copies_of_one_text_are_equally_near_whatever_their_rounding() -> None:
    """Which ten of forty copies are the nearest is chance."""
    texts = [vector for vector in unit_vectors(0, 5, 32) for _ in range(40)]
    noise = np.random.default_rng(1).normal(scale=1e-7, size=(len(texts), 32)).astype(np.float32)
    found, _ = vector_drift(texts, list(np.stack(texts) + noise))
    assert found.overlap == 1.0


def test_one_pair_has_no_neighbours() -> None:
    found, worst = vector_drift(unit_vectors(0, 1, 4), unit_vectors(1, 1, 4))
    assert (found.overlap, worst) == (None, 0)


@given(st.lists(st.integers(-50, 50), min_size=2, unique=True))
def test_ranks_do_not_depend_on_the_scale_of_the_scores(scores: list[int]) -> None:
    found, _ = score_drift([score / 7 for score in scores], [score**3 + 2.0 for score in scores])
    assert found.spearman == pytest.approx(1.0)
    assert found.largest_move == 0.0
    reversed_, _ = score_drift(scores, [-score for score in scores])
    assert reversed_.spearman == pytest.approx(-1.0)
    assert reversed_.largest_move == len(scores) - 1
