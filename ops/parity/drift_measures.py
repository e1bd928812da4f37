"""Measures of how far the answers of two versions are apart, over pairs of answers to the same inputs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from penstock.ops.parity.calls import cosines
from penstock.ops.parity.recorded_answers import UnitVector

_NEAREST = 10
_ASKED = 1000  # vectors whose neighbours are looked up: a mean share of them is known to a hundredth
_AT_ONCE = 256  # of these, in one product
_EQUALLY_NEAR = 1e-5  # cosines that differ by rounding, as those to copies of one text


@dataclass(frozen=True, slots=True)
class LabelFlow:
    """Records that one version gives a label, and the other another."""

    before: str
    after: str
    count: int


@dataclass(frozen=True, slots=True)
class LabelDrift:
    """Of labels."""

    changed: int
    share: float
    flows: tuple[LabelFlow, ...]  # the largest first


@dataclass(frozen=True, slots=True)
class Cosines:
    """Of pairs of vectors."""

    min: float
    p1: float
    median: float
    mean: float


@dataclass(frozen=True, slots=True)
class VectorDrift:
    """Of vectors. The overlap can be compared across models, whose spaces differ; cosines cannot."""

    dimensions: tuple[int, int]
    cosine: Cosines | None  # None: the dimensions differ
    nearest: int  # neighbours of each vector that are looked up
    overlap: float | None  # the share of them that is as near to the vector in the other version; None: of one pair


@dataclass(frozen=True, slots=True)
class ScoreDrift:
    """Of scores, by their ranks: two rerankers may score on different scales."""

    spearman: float | None  # None: all scores of a version are equal
    median_move: float  # ranks
    largest_move: float


def label_drift(first: Sequence[str], second: Sequence[str]) -> LabelDrift:
    """How many labels differ, and from which to which."""
    flows = Counter((before, after) for before, after in zip(first, second, strict=True) if before != after)
    ordered = sorted(flows.items(), key=lambda one: (-one[1], one[0]))
    changed = flows.total()
    return LabelDrift(changed, changed / len(first), tuple(LabelFlow(*labels, count) for labels, count in ordered))


def vector_drift(first: Sequence[UnitVector], second: Sequence[UnitVector]) -> tuple[VectorDrift, int | None]:
    """Cosines of the pairs, and the overlap of the nearest neighbours; and the pair of the least cosine.

    The vectors of each version have the same dimensions.
    """
    ours, theirs = np.stack(first), np.stack(second)
    of_pairs = worst = None
    if ours.shape == theirs.shape:
        values = cosines(ours, theirs)
        p1, median = np.percentile(values, (1, 50))
        worst = int(np.argmin(values))
        of_pairs = Cosines(float(values[worst]), float(p1), float(median), float(np.mean(values)))
    nearest = min(_NEAREST, len(ours) - 1)
    overlap = _overlap(ours, theirs, nearest) if nearest else None
    return VectorDrift((ours.shape[1], theirs.shape[1]), of_pairs, nearest, overlap), worst


def score_drift(first: Sequence[float], second: Sequence[float]) -> tuple[ScoreDrift, int]:
    """The correlation of the ranks, and how far they move; and the pair that moves most."""
    ours, theirs = _ranks(first), _ranks(second)
    moves = np.abs(ours - theirs)
    worst = int(np.argmax(moves))
    is_constant = np.ptp(ours) == 0 or np.ptp(theirs) == 0
    spearman = None if is_constant else float(np.corrcoef(ours, theirs)[0, 1])
    return ScoreDrift(spearman, float(np.median(moves)), float(moves[worst])), worst


def _overlap(ours: npt.NDArray[np.float32], theirs: npt.NDArray[np.float32], nearest: int) -> float:
    """The mean share, over the first vectors, of neighbours in one version that are as near in the other."""
    found = 0.0
    asked = min(_ASKED, len(ours))
    for start in range(0, asked, _AT_ONCE):
        rows = np.arange(start, min(start + _AT_ONCE, asked))
        near, there = _nearness(ours, rows), _nearness(theirs, rows)
        chosen = np.argpartition(near, -nearest, axis=1)[:, -nearest:]
        least = np.partition(there, -nearest, axis=1)[:, -nearest, None]
        found += float(np.sum(np.take_along_axis(there, chosen, axis=1) >= least - _EQUALLY_NEAR))
    return found / (asked * nearest)


def _nearness(vectors: npt.NDArray[np.float32], rows: npt.NDArray[np.intp]) -> npt.NDArray[np.float32]:
    """The cosines of some vectors with all; that of a vector with itself is the least there is."""
    products = vectors[rows] @ vectors.T
    products[np.arange(len(rows)), rows] = -np.inf
    return products


def _ranks(scores: Sequence[float]) -> npt.NDArray[np.float64]:
    """The place of each score in their order, from 1. Equal scores share the mean of their places."""
    _, inverse, counts = np.unique(np.asarray(scores, np.float64), return_inverse=True, return_counts=True)
    means = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(means[inverse])
