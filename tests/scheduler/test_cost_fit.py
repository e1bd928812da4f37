"""The fit of a cost table: few, noisy, flat, uneven and impossible timings."""

import itertools
import math
import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.scheduler import CostFunction, CostTable, PackedCost, PaddedCost, fit_cost_table
from tests.examples import examples

LAW = (1.5e-3, 4e-4, 3e-6, 2e-9)
# As a calibration would: token totals x lengths, and three single sequences.
BATCHES = [[size] * (tokens // size) for size in (32, 128, 512) for tokens in (512, 1024, 2048, 4096, 8192)]
BATCHES += [[16], [64], [128]]
UNSEEN = [[20] * 3, [20] * 100, [300] * 10, [512] * 12, [17, 400, 3, 90]]


def seconds_of(cost: CostFunction, lengths: Sequence[int]) -> float:
    return float(cost.seconds(sum(lengths), sum(n * n for n in lengths), max(lengths), len(lengths)))


@pytest.mark.parametrize("padded", [False, True])
def test_the_fit_finds_the_cost_that_made_the_timings(padded: bool) -> None:
    rng = random.Random(5)
    true = PaddedCost(*LAW) if padded else PackedCost(*LAW)
    timings = [(batch, seconds_of(true, batch) * rng.uniform(0.98, 1.02)) for batch in BATCHES]
    table = fit_cost_table(timings, padded=padded)
    assert table.padded == padded
    for batch in UNSEEN:
        assert seconds_of(table, batch) == pytest.approx(seconds_of(true, batch), rel=0.06)
    assert table.base.floor_s == pytest.approx(LAW[0], rel=0.03)


@pytest.mark.parametrize("padded", [False, True])
def test_factors_take_up_what_the_law_cannot_say(padded: bool) -> None:
    """Long sequences 30 % dearer, as of a slower kernel for them, and a step in the batch size."""

    def true_s(lengths: Sequence[int]) -> float:
        law = PaddedCost(*LAW) if padded else PackedCost(*LAW)
        return seconds_of(law, lengths) * (1.3 if max(lengths) > 300 else 1.0) * (1.2 if sum(lengths) > 3000 else 1.0)

    table = fit_cost_table([(batch, true_s(batch)) for batch in BATCHES], padded=padded)
    errors = sorted(abs(seconds_of(table, batch) / true_s(batch) - 1) for batch in BATCHES)
    law_errors = sorted(abs(seconds_of(table.base, batch) / true_s(batch) - 1) for batch in BATCHES)
    assert errors[-1] < 0.06
    assert errors[-1] < law_errors[-1] / 2
    assert [sample.error(table) for sample in table.samples] == pytest.approx(
        [seconds_of(table, batch) / true_s(batch) - 1 for batch in BATCHES]
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0, 4000.0])
def test_timings_that_cannot_be_true_are_left_out(bad: float) -> None:
    timings = [(batch, seconds_of(PackedCost(*LAW), batch)) for batch in BATCHES]
    assert fit_cost_table([*timings, ([64] * 9, bad)], padded=False) == fit_cost_table(timings, padded=False)


@pytest.mark.slow
@pytest.mark.parametrize("times", [1e-4, 0.05, 20, 1000])
@pytest.mark.parametrize("which", [*range(0, 15, 3), 15, 16, 17])
def test_one_timing_out_of_all_proportion_poisons_nothing(which: int, times: float) -> None:
    """The others are predicted within 15 %, and so is what lies beside them."""
    true = PackedCost(*LAW)
    timings = [(batch, seconds_of(true, batch)) for batch in BATCHES]
    timings[which] = (timings[which][0], timings[which][1] * times)
    table = fit_cost_table(timings, padded=False)
    assert len(table.samples) == len(BATCHES) - 1
    for index, batch in enumerate(BATCHES):
        if index != which:
            assert seconds_of(table, batch) == pytest.approx(seconds_of(true, batch), rel=0.15)


def test_few_timings_still_give_a_cost() -> None:
    one = fit_cost_table([([100, 100], 0.002)], padded=False)
    assert seconds_of(one, [100, 100]) == pytest.approx(0.002)
    assert seconds_of(one, [400]) == pytest.approx(0.004)  # seconds a token is all that one timing can say
    two = fit_cost_table([([100], 0.002), ([300], 0.004)], padded=False)
    assert two.base.alpha_s == pytest.approx(0.001)
    assert two.base.beta_s == pytest.approx(1e-5)
    falling = fit_cost_table([([100], 0.004), ([300], 0.002)], padded=False)  # noise: more work seems faster
    assert falling.base.beta_s == 0.0
    assert 0.002 <= seconds_of(falling, [100]) <= 0.004


@settings(max_examples=examples(100))
@given(
    st.booleans(),
    st.lists(
        st.tuples(st.lists(st.integers(1, 512), min_size=1, max_size=20), st.floats(1e-5, 10.0)), min_size=1, max_size=9
    ),
)
def test_any_timings_give_a_cost_that_is_not_negative_and_not_free(
    padded: bool, timings: list[tuple[list[int], float]]
) -> None:
    table = fit_cost_table(timings, padded=padded)
    assert CostTable.from_dict(table.to_dict()) == table
    for lengths, _ in timings:
        assert 0 < seconds_of(table, lengths) < 1e6


@pytest.mark.parametrize("timings", [[], [([], 1.0)], [([0], 1.0)], [([5], 0.0)], [([5], math.nan), ([6], -1.0)]])
def test_without_a_possible_timing_there_is_no_table(timings: list[tuple[list[int], float]]) -> None:
    with pytest.raises(ValueError, match="timing"):
        fit_cost_table(timings, padded=False)


def test_a_fit_is_a_matter_of_milliseconds() -> None:
    """It runs at a worker's start. Far from the bound, which only a wrong order of growth would reach."""
    sizes, lengths = (1, 2, 4, 8, 16, 32, 64, 128), (8, 16, 32, 64, 128, 256, 512)
    batches = [[length] * size for size, length in itertools.product(sizes, lengths)]
    started = time.process_time()
    fit_cost_table([(batch, seconds_of(PaddedCost(*LAW), batch)) for batch in batches], padded=True)
    assert time.process_time() - started < 2.0
