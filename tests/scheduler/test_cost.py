"""Cost functions: one value or many, and a fit that survives few, noisy and flat timings."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.scheduler import PackedCost, PaddedCost, fit_packed_cost


def packed_seconds(cost: PackedCost, lengths: list[int]) -> float:
    return float(cost.seconds(sum(lengths), sum(n * n for n in lengths), max(lengths), len(lengths)))


@pytest.mark.parametrize(("kind", "expected"), [(PackedCost, 2 + 3 * 12 + 0.5 * 80), (PaddedCost, 2 + 48 + 0.5 * 128)])
def test_numbers_and_arrays_give_the_same_seconds(kind: type[PackedCost] | type[PaddedCost], expected: float) -> None:
    cost = kind(1.0, 2.0, 3.0, 0.5)
    arguments = (12, 80, 8, 2)  # lengths 8 and 4
    assert cost.seconds(*arguments) == expected
    many = cost.seconds(*(np.array([float(value), 0.0]) for value in arguments))
    assert np.array_equal(np.asarray(many), [expected, 2.0])


def test_the_floor_is_the_least_a_batch_costs() -> None:
    assert packed_seconds(PackedCost(5.0, 1.0, 1.0, 0.0), [1]) == 5.0
    assert packed_seconds(PackedCost(5.0, 1.0, 1.0, 0.0), [9]) == 10.0


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_coefficients_must_be_finite_and_not_negative(bad: float) -> None:
    with pytest.raises(ValueError, match="gamma_s must be a finite number of seconds"):
        PackedCost(0.0, 0.0, 0.0, bad)


def test_the_fit_finds_the_cost_that_made_the_timings() -> None:
    rng = random.Random(5)
    true = PackedCost(1.5e-3, 4e-4, 3e-6, 2e-9)
    batches = [[size] * (tokens // size) for size in (32, 128, 512) for tokens in (512, 1024, 2048, 4096, 8192)]
    batches += [[16], [64], [128]]
    timings = [(batch, packed_seconds(true, batch) * rng.uniform(0.98, 1.02)) for batch in batches]
    fitted = fit_packed_cost(timings)
    unseen = [[20] * 3, [20] * 100, [300] * 10, [512] * 20, [17, 400, 3, 90]]
    for batch in unseen:
        assert packed_seconds(fitted, batch) == pytest.approx(packed_seconds(true, batch), rel=0.06)
    assert fitted.floor_s == pytest.approx(true.floor_s, rel=0.03)


def test_few_timings_still_give_a_cost() -> None:
    one = fit_packed_cost([([100, 100], 0.002)])
    assert packed_seconds(one, [100, 100]) == pytest.approx(0.002)
    assert packed_seconds(one, [400]) == pytest.approx(0.004)  # seconds a token is all that one timing can say
    two = fit_packed_cost([([100], 0.002), ([300], 0.004)])
    assert two.alpha_s == pytest.approx(0.001)
    assert two.beta_s == pytest.approx(1e-5)
    falling = fit_packed_cost([([100], 0.004), ([300], 0.002)])  # noise: more work seems faster
    assert falling.beta_s == 0.0
    assert 0.002 <= falling.alpha_s <= 0.004


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 512), min_size=1, max_size=20), st.floats(1e-5, 10.0)), min_size=1, max_size=9
    )
)
def test_any_timings_give_a_cost_that_is_not_negative_and_not_free(timings: list[tuple[list[int], float]]) -> None:
    fitted = fit_packed_cost(timings)
    for lengths, _ in timings:
        assert 0 < packed_seconds(fitted, lengths) < 1e6


@pytest.mark.parametrize("timings", [[], [([], 1.0)], [([0], 1.0)], [([5], 0.0)], [([5], float("nan"))]])
def test_impossible_timings_are_refused(timings: list[tuple[list[int], float]]) -> None:
    with pytest.raises(ValueError, match="timing"):
        fit_packed_cost(timings)
