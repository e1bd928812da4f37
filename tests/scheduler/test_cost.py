"""The law of launch and work: one batch or many, packed or padded."""

import numpy as np
import pytest

from penstock.scheduler import PackedCost, PaddedCost
from tests.scheduler.many_costs import many_seconds


def packed_seconds(cost: PackedCost, lengths: list[int]) -> float:
    return float(cost.seconds(sum(lengths), sum(n * n for n in lengths), max(lengths), len(lengths)))


@pytest.mark.parametrize(("kind", "expected"), [(PackedCost, 2 + 3 * 12 + 0.5 * 80), (PaddedCost, 2 + 48 + 0.5 * 128)])
def test_numbers_and_arrays_give_the_same_seconds(kind: type[PackedCost] | type[PaddedCost], expected: float) -> None:
    cost = kind(1.0, 2.0, 3.0, 0.5)
    arguments = (12, 80, 8, 2)  # lengths 8 and 4
    assert cost.seconds(*arguments) == expected
    many = many_seconds(cost, *(np.array([float(value), 0.0]) for value in arguments))
    assert np.array_equal(many, [expected, 2.0])


def test_the_floor_is_the_least_a_batch_costs() -> None:
    assert packed_seconds(PackedCost(5.0, 1.0, 1.0, 0.0), [1]) == 5.0
    assert packed_seconds(PackedCost(5.0, 1.0, 1.0, 0.0), [9]) == 10.0


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf")])
def test_coefficients_must_be_finite_and_not_negative(bad: float) -> None:
    with pytest.raises(ValueError, match="gamma_s must be a finite number of seconds"):
        PackedCost(0.0, 0.0, 0.0, bad)


def test_only_a_padded_cost_pays_for_padding() -> None:
    packed, padded = PackedCost(0.0, 1.0, 1.0, 0.5), PaddedCost(0.0, 1.0, 1.0, 0.5)
    assert not packed.padded
    assert padded.padded
    assert packed.seconds(12, 80, 8, 2) < padded.seconds(12, 80, 8, 2)
    assert packed.seconds(16, 128, 8, 2) == padded.seconds(16, 128, 8, 2)
