"""A cost table: bilinear between its knots, the same for one batch and for many, strict about what it is read from."""

import itertools
import json
import math
from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.scheduler import CorruptTable, CostTable, PackedCost, PaddedCost, fit_cost_table
from tests.scheduler.many_costs import many_seconds

LAW = (2.0, 1.0, 0.01, 0.0001)
SIZES, LENGTHS = (4.0, 16.0, 64.0), (10.0, 100.0)
FACTORS = ((1.0, 1.5), (2.0, 0.5), (0.25, 3.0))


def table(kind: type[PackedCost] | type[PaddedCost]) -> CostTable:
    return CostTable(kind(*LAW), SIZES, LENGTHS, FACTORS)


def factor(cost: CostTable, size: float, longest: float) -> float:
    batch = (7, 7, longest, size) if cost.padded else (size, 7, longest, 7)
    return float(cost.seconds(*batch)) / float(cost.base.seconds(*batch))


both = pytest.mark.parametrize("kind", [PackedCost, PaddedCost])


@both
def test_at_a_knot_its_factor_counts(kind: type[PackedCost] | type[PaddedCost]) -> None:
    for (row, size), (column, longest) in itertools.product(enumerate(SIZES), enumerate(LENGTHS)):
        assert factor(table(kind), size, longest) == pytest.approx(FACTORS[row][column])


@both
def test_between_knots_factors_are_bilinear(kind: type[PackedCost] | type[PaddedCost]) -> None:
    assert factor(table(kind), 10, 10) == pytest.approx(1.5)
    assert factor(table(kind), 16, 55) == pytest.approx(1.25)
    assert factor(table(kind), 40, 55) == pytest.approx((2.0 + 0.5 + 0.25 + 3.0) / 4)


@both
def test_beyond_the_knots_the_edge_counts(kind: type[PackedCost] | type[PaddedCost]) -> None:
    assert factor(table(kind), 1, 1) == pytest.approx(1.0)
    assert factor(table(kind), 1e6, 1e6) == pytest.approx(3.0)
    assert factor(table(kind), 1, 55) == pytest.approx(1.25)
    assert factor(table(kind), 1000, 10) == pytest.approx(0.25)


sums = st.tuples(st.integers(1, 200), st.integers(1, 20_000), st.integers(1, 200), st.integers(1, 100))


@given(st.lists(sums, min_size=1, max_size=20), st.sampled_from((PackedCost, PaddedCost)))
def test_one_batch_and_many_cost_the_same(
    batches: list[tuple[int, int, int, int]], kind: type[PackedCost] | type[PaddedCost]
) -> None:
    cost = table(kind)
    many = many_seconds(cost, *np.array(batches, dtype=np.float64).T)
    assert many.tolist() == pytest.approx([cost.seconds(*batch) for batch in batches], rel=1e-12)


def test_without_factors_a_table_is_its_law() -> None:
    law = PackedCost(*LAW)
    assert CostTable(law).seconds(30, 500, 20, 3) == law.seconds(30, 500, 20, 3)


def test_a_table_survives_json() -> None:
    for padded in (False, True):
        fitted = fit_cost_table(
            [([length] * count, 0.001 + 1e-6 * length * count) for length in (8, 64) for count in (1, 9)], padded=padded
        )
        read = CostTable.from_dict(json.loads(json.dumps(fitted.to_dict())))
        assert read == fitted
        assert read.samples == fitted.samples
        assert read.seconds(90, 1000, 30, 5) == fitted.seconds(90, 1000, 30, 5)


GOOD = json.loads(
    json.dumps(fit_cost_table([([8] * n, 0.001 * n) for n in (1, 2, 3)] + [([64] * 3, 0.02)], padded=True).to_dict())
)
NUMBERS = ("floor_s", "alpha_s", "beta_s", "gamma_s")
LISTS = ("sizes", "lengths", "factors", "samples")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *itertools.product(NUMBERS, (-1.0, math.nan, math.inf, None, "1", True, [1.0], 10**400)),
        *itertools.product(LISTS, (None, 5, "abc", {}, [None], [[None]], [[1.0, math.nan]], ["1"], [[]])),
        *itertools.product(("sizes", "lengths"), ([], [0.0, 1.0], [-1.0, 5.0], [5.0, 1.0], [1.0, 1.0], [1.0] * 2000)),
        ("sizes", [*GOOD["sizes"], 1e6]),
        ("factors", GOOD["factors"][1:]),
        ("factors", [[0.0] * len(row) for row in GOOD["factors"]]),
        ("factors", [[-1.0] * len(row) for row in GOOD["factors"]]),
        ("samples", [[1, 1, 1, 1]]),
        ("samples", [[1, 1, 1, 0, 0.5]]),
        ("samples", [[1, 1.5, 1, 1, 0.5]]),
        ("samples", [[1, 1, 1, 1, 0.0]]),
        ("padded", 1),
        ("padded", None),
    ],
)
def test_what_cannot_be_a_table_is_not_read(key: str, value: object) -> None:
    assert CostTable.from_dict(GOOD).padded
    data = deepcopy(GOOD)
    data[key] = value
    with pytest.raises(CorruptTable, match=r"\w"):
        CostTable.from_dict(data)


@pytest.mark.parametrize("data", [None, [], "table", 5, {}, {**GOOD, "more": 1}, {"padded": True}])
def test_what_is_no_table_at_all_is_not_read(data: object) -> None:
    with pytest.raises(CorruptTable, match="has the keys"):
        CostTable.from_dict(data)


json_data = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=5), inner, max_size=4)),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(sorted(GOOD)), json_data, min_size=1))
def test_reading_either_gives_a_table_or_says_why_not(changes: dict[str, object]) -> None:
    try:
        read = CostTable.from_dict({**GOOD, **changes})
    except CorruptTable:
        return
    assert math.isfinite(float(read.seconds(100, 5000, 50, 4)))
