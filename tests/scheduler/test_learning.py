"""Learned cost: steady when it is right, quick to follow a lasting change, unmoved by a single slow batch."""

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduler import CostTable, LearnedCost, PackedCost, PaddedCost

TABLE = CostTable(
    PackedCost(1e-3, 2e-4, 2e-6, 1e-9),
    (64.0, 512.0, 4096.0),
    (16.0, 64.0, 256.0),
    ((1.0, 1.1, 1.2), (0.9, 1.0, 1.1), (1.0, 0.95, 1.05)),
)
Batch = tuple[int, int, int, int]  # tokens, squares, longest, count
PROBES: list[Batch] = [(16, 256, 16, 1), (640, 40_960, 64, 10), (4096, 1_048_576, 256, 16), (2000, 40_000, 20, 100)]


def random_batch(rng: random.Random) -> Batch:
    longest = rng.choice((20, 100, 256))
    lengths = [rng.randint(2, longest) for _ in range(rng.randint(1, 60))]
    return sum(lengths), sum(n * n for n in lengths), max(lengths), len(lengths)


def predictions(cost: LearnedCost | CostTable) -> list[float]:
    return [float(cost.seconds(*batch)) for batch in PROBES]


def learn(cost: LearnedCost, rng: random.Random, num: int, times: float = 1.0, noise: float = 0.0) -> None:
    for _ in range(num):
        batch = random_batch(rng)
        cost.observe(*batch, float(TABLE.seconds(*batch)) * times * math.exp(rng.gauss(0, noise)))


@pytest.mark.parametrize("noise", [0.0, 0.03, 0.1])
def test_a_cost_that_is_right_stays(noise: float) -> None:
    cost, rng = LearnedCost(TABLE), random.Random(1)
    for _ in range(30):
        learn(cost, rng, 100, noise=noise)
        assert predictions(cost) == pytest.approx(predictions(TABLE), rel=max(1e-9, noise))
    if noise <= 0.03:
        assert cost.scale == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize("times", [2.0, 0.5, 10.0])
def test_a_lasting_change_is_followed_within_tens_of_batches(times: float) -> None:
    cost, rng = LearnedCost(TABLE), random.Random(2)
    learn(cost, rng, 500, noise=0.03)
    learn(cost, rng, 30, times, noise=0.03)
    assert predictions(cost) == pytest.approx([seconds * times for seconds in predictions(TABLE)], rel=0.1)


@pytest.mark.parametrize("times", [100.0, 0.01])
def test_one_outlier_moves_nothing_noticeable(times: float) -> None:
    cost, rng = LearnedCost(TABLE), random.Random(3)
    learn(cost, rng, 200, noise=0.02)
    before = predictions(cost)
    learn(cost, rng, 1, times)
    assert predictions(cost) == pytest.approx(before, rel=0.01)
    learn(cost, rng, 50, noise=0.02)
    assert predictions(cost) == pytest.approx(predictions(TABLE), rel=0.03)


def test_seven_slow_batches_in_a_row_are_no_change_yet() -> None:
    cost, rng = LearnedCost(TABLE), random.Random(4)
    learn(cost, rng, 200, noise=0.01)
    learn(cost, rng, 7, 10.0)
    assert predictions(cost) == pytest.approx(predictions(TABLE), rel=0.02)


def test_errors_are_those_of_predictions_made_before_the_batch_ran() -> None:
    cost = LearnedCost(TABLE)
    assert all(math.isnan(error) for error in cost.errors())
    batch = PROBES[1]
    cost.observe(*batch, 2 * float(TABLE.seconds(*batch)))
    assert cost.errors() == pytest.approx((0.5, 0.5))


def test_errors_forget_what_is_a_thousand_batches_ago() -> None:
    cost, rng = LearnedCost(TABLE), random.Random(6)
    learn(cost, rng, 300, 3.0)
    learn(cost, rng, 1100)
    assert cost.errors()[1] < 0.01


@pytest.mark.parametrize("measured_s", [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e300, 5e-324])
def test_what_is_no_measurement_is_ignored(measured_s: float) -> None:
    cost = LearnedCost(TABLE)
    for batch in PROBES * 20:
        cost.observe(*batch, measured_s)
    assert predictions(cost) == predictions(TABLE)
    assert math.isnan(cost.errors()[0])


@given(st.lists(st.tuples(st.sampled_from(PROBES), st.floats(0.01, 100.0)), max_size=60))
def test_predictions_stay_within_what_was_seen(observed: Sequence[tuple[Batch, float]]) -> None:
    """No prediction differs from the table's by more than the observed batches did."""
    cost = LearnedCost(TABLE)
    for batch, times in observed:
        cost.observe(*batch, float(TABLE.seconds(*batch)) * times)
    ratios = [1.0, *(times for _, times in observed)]
    for learned, first in zip(predictions(cost), predictions(TABLE), strict=True):
        assert min(ratios) * (1 - 1e-9) <= learned / first <= max(ratios) * (1 + 1e-9)


def test_a_padded_table_stays_padded() -> None:
    table = CostTable(PaddedCost(0.0, 0.0, 1e-5, 0.0), (1.0, 64.0), (10.0, 100.0), ((1.0, 1.0), (1.0, 1.0)))
    cost = LearnedCost(table)
    cost.observe(50, 2500, 50, 1, 2 * float(table.seconds(50, 2500, 50, 1)))
    assert cost.padded
