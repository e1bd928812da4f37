"""Fit of a cost table to timings of an engine."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from penstock.scheduler.costs.cost import FloatArray, PackedCost, PaddedCost
from penstock.scheduler.costs.table import CostTable, Sample

_MAX_SIZES = 12  # knots of the grid; more would need more timings
_MAX_LENGTHS = 8
_KNOT_RATIO = 1.25  # least ratio of neighbouring knots
_STIFFNESS = 0.25  # weight of the difference between neighbouring factors; a timing's weight is 1
_LEAST_FACTOR, _MOST_FACTOR = 0.25, 4.0
_ABSURD = 8.0  # times as long, or as short, as the other timings allow
_MAX_S = 3600.0  # no batch takes an hour


def fit_cost_table(samples: Iterable[tuple[Sequence[int], float]], *, padded: bool) -> CostTable:
    """The table that explains timings, each (lengths of the batch, measured seconds).

    First the law max(floor, alpha + beta * tokens + gamma * squares) is fitted, without negative coefficients, by least
    squares on relative errors: a 1 ms batch counts as much as a 100 ms one. One timing gives beta only, two or three
    also alpha, four or more also gamma and the floor. Then factors correct the errors of the law.

    Timings that cannot be true are left out: NaN, infinity, 0 or less, an hour, or 8 times off the others.
    ValueError when none is left, or when a batch is empty or holds a length below 1.
    """
    timings = [Sample.of(lengths, seconds) for lengths, seconds in samples]
    possible = [timing for timing in timings if 0 < timing.seconds < _MAX_S]
    if not possible:
        raise ValueError(f"A cost table needs at least one timing above 0 s and below {_MAX_S:g} s. Given: {timings}")
    credible = _without_absurd(possible, padded)
    return _with_factors(_fit_law(credible, padded), credible)


def _without_absurd(samples: Sequence[Sample], padded: bool) -> Sequence[Sample]:
    """The timings without outliers: up to a quarter is removed, each time the one without which the others agree best.

    A timing that is far too short would dominate the fit, as its relative error counts for more than all others'.
    """
    for _ in range(len(samples) // 4):
        rests = [[*samples[:index], *samples[index + 1 :]] for index in range(len(samples))]
        laws = [_fit_law(rest, padded) for rest in rests]
        # Logarithms count too long and too short alike.
        errors = [[math.log1p(sample.error(law)) for sample in samples] for law in laws]
        rest_errors = [sum(error**2 for error in of) - of[index] ** 2 for index, of in enumerate(errors)]
        worst = int(np.argmin(rest_errors))
        if abs(errors[worst][worst]) < math.log(_ABSURD):
            break
        samples = rests[worst]
    return samples


def _fit_law(samples: Sequence[Sample], padded: bool) -> PackedCost:
    """The law with the least relative squared error, where the floor alone explains some of the fastest timings."""
    num_terms = min(2, len(samples)) if len(samples) < 4 else 3
    work = [(s.longest * s.count, s.longest**2 * s.count) if padded else (s.tokens, s.squares) for s in samples]
    features = np.array([(tokens, 1, squares) for tokens, squares in work], dtype=np.float64)[:, :num_terms]
    measured = np.array([sample.seconds for sample in samples])
    order = np.argsort(measured, kind="stable")
    found = []
    for num_flat in range(max(1, len(samples) - 2)):
        flat, steep = measured[order[:num_flat]], order[num_flat:]
        coefficients = _fit_non_negative(features[steep], measured[steep])
        # The constant with the least relative squared error over the flat part.
        floor = float(np.sum(1 / flat) / np.sum(1 / flat**2)) if num_flat else 0.0
        error = float(np.sum((np.maximum(floor, features @ coefficients) / measured - 1) ** 2))
        found.append((error, (floor, *np.pad(coefficients, (0, 3 - num_terms)).tolist())))
    floor, beta, alpha, gamma = min(found, key=lambda fit: fit[0])[1]
    return (PaddedCost if padded else PackedCost)(floor, alpha, beta, gamma)


def _fit_non_negative(features: FloatArray, measured: FloatArray) -> FloatArray:
    """Coefficients >= 0, one a column, with the least relative squared error: negative ones are left out in turn."""
    relative = features / measured[:, None]
    scale = np.linalg.norm(relative, axis=0)
    columns = list(range(len(scale)))
    while True:
        solution = np.linalg.lstsq(relative[:, columns] / scale[columns], np.ones(len(measured)), rcond=None)[0]
        if np.all(solution >= 0):
            coefficients = np.zeros(len(scale))
            coefficients[columns] = solution / scale[columns]
            return coefficients
        del columns[int(np.argmin(solution))]


def _with_factors(base: PackedCost, samples: Sequence[Sample]) -> CostTable:
    """The base with factors by least squares on relative errors. A knot without timings takes its neighbours', or 1."""
    size_of = np.array([float(s.count if base.padded else s.tokens) for s in samples])
    longest_of = np.array([float(s.longest) for s in samples])
    sizes, lengths = _knots(size_of, _MAX_SIZES), _knots(longest_of, _MAX_LENGTHS)
    num = len(sizes) * len(lengths)
    ratio = np.array([sample.predicted_by(base) / sample.seconds for sample in samples])
    # [timings, knots] each: how much a knot counts at a timing.
    by_size = np.stack([np.interp(size_of, sizes, of_knot) for of_knot in np.eye(len(sizes))], axis=1)
    by_length = np.stack([np.interp(longest_of, lengths, of_knot) for of_knot in np.eye(len(lengths))], axis=1)
    weights = by_size[:, :, None] * by_length[:, None, :]
    knots = np.eye(num).reshape(len(sizes), len(lengths), num)
    steps = [np.diff(knots, axis=axis).reshape(-1, num) for axis in (0, 1)]
    stiff = _STIFFNESS * np.concatenate(steps)
    system = np.concatenate([ratio[:, None] * weights.reshape(-1, num), stiff, np.eye(num) * _STIFFNESS**2])
    wanted = np.concatenate([np.ones(len(samples)), np.zeros(len(stiff)), np.full(num, _STIFFNESS**2)])
    factors = np.clip(np.linalg.lstsq(system, wanted, rcond=None)[0], _LEAST_FACTOR, _MOST_FACTOR)
    rows = map(tuple, factors.reshape(len(sizes), len(lengths)).tolist())
    return CostTable(base, tuple(sizes.tolist()), tuple(lengths.tolist()), tuple(rows), tuple(samples))


def _knots(values: FloatArray, most: int) -> FloatArray:
    """At most so many of the values, each a good step above the one before, the least and the greatest among them."""
    knots = [values.min()]
    for value in np.unique(values):
        if value >= knots[-1] * _KNOT_RATIO:
            knots.append(value)
    if len(knots) > 1:
        knots[-1] = values.max()
    chosen = np.linspace(0, len(knots) - 1, min(most, len(knots))).round().astype(int)
    return np.array([knots[place] for place in chosen], dtype=np.float64)
