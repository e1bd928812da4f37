"""A measured cost: a law of launch and work, corrected on a grid of timings, and by every batch that ran."""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from penstock.scheduler.costs.cost import CostFunction, FloatArray, PackedCost, PaddedCost
from penstock.scheduler.costs.errors import PredictionErrors

# Of stored data: the numbers, in how many lists of lists.
_DEPTHS = {"floor_s": 0, "alpha_s": 0, "beta_s": 0, "gamma_s": 0, "sizes": 1, "lengths": 1, "factors": 2, "samples": 2}
_NUM_RECENT = 15  # batches whose median the learned scale is: seven outliers among them move nothing
_ABSURD = 1e6  # times as long, or as short, as predicted
_MAX_NUMBER = 1e18  # seconds, tokens: nothing of an engine comes near
_MAX_ENTRIES = 1000  # of any list in stored data; a fit makes a few dozen


class CorruptTable(ValueError):
    """Stored data that cannot be a cost table."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One timing of the engine."""

    tokens: int  # sum of the lengths
    squares: int  # sum of the squared lengths
    longest: int
    count: int
    seconds: float  # measured

    @classmethod
    def of(cls, lengths: Sequence[int], seconds: float) -> "Sample":
        """The timing of a batch. ValueError when it is empty, or holds a length below 1."""
        if not lengths or min(lengths) < 1:
            raise ValueError(f"A timing needs a batch of lengths >= 1. Given: {list(lengths)}")
        return cls(sum(lengths), sum([length * length for length in lengths]), max(lengths), len(lengths), seconds)

    def predicted_by(self, cost: CostFunction) -> float:
        return cost.seconds(self.tokens, self.squares, self.longest, self.count)

    def error(self, cost: CostFunction) -> float:
        """Predicted / measured - 1."""
        return self.predicted_by(cost) / self.seconds - 1


@dataclass(frozen=True, slots=True)
class CostTable:
    """`base` times a factor, which is bilinear between the knots of a grid, and constant beyond its edges.

    Raises ValueError for knots that do not ascend or factors that are not positive.
    """

    base: PackedCost  # or PaddedCost
    sizes: tuple[float, ...] = (1.0,)  # knots, ascending: total tokens (packed) or count of sequences (padded)
    lengths: tuple[float, ...] = (1.0,)  # knots, ascending: longest sequence
    factors: tuple[tuple[float, ...], ...] = ((1.0,),)  # [len(sizes)][len(lengths)]
    samples: tuple[Sample, ...] = field(default=(), compare=False, repr=False)  # what it was fitted to
    # Sizes [S], lengths [L] and cells [S + 1, L + 1, 4], for the dynamic program. The factor in a cell (p, q, r, s)
    # is p + q * longest + r * size + s * size * longest.
    arrays: tuple[FloatArray, FloatArray, FloatArray] = field(init=False, compare=False, repr=False)
    _cells: list[list[list[float]]] = field(init=False, compare=False, repr=False)  # for one batch

    def __post_init__(self) -> None:
        for name, knots in (("sizes", self.sizes), ("lengths", self.lengths)):
            ascend = all(before < after for before, after in pairwise(knots))
            if not knots or not knots[0] > 0 or not knots[-1] < math.inf or not ascend:
                raise ValueError(f"{name} must be finite numbers above 0 that ascend. Given: {knots}")
        if [len(row) for row in self.factors] != [len(self.lengths)] * len(self.sizes):
            raise ValueError(f"factors must be {len(self.sizes)} rows of {len(self.lengths)}.")
        if not all(0 < factor < math.inf for row in self.factors for factor in row):
            raise ValueError("factors must be finite and above 0.")
        sizes, lengths = np.array(self.sizes, dtype=np.float64), np.array(self.lengths, dtype=np.float64)
        cells = np.einsum("icn,nm,jdm->ijcd", _knot_lines(sizes), np.array(self.factors), _knot_lines(lengths))
        cells = np.ascontiguousarray(cells.reshape(len(sizes) + 1, len(lengths) + 1, 4))
        object.__setattr__(self, "arrays", (sizes, lengths, cells))
        object.__setattr__(self, "_cells", cells.tolist())

    @property
    def padded(self) -> bool:
        return self.base.padded

    def seconds(self, tokens: float, squares: float, longest: float, count: float) -> float:
        law_s = self.base.seconds(tokens, squares, longest, count)
        size = count if self.base.padded else tokens
        p, q, r, s = self._cells[bisect_right(self.sizes, size)][bisect_right(self.lengths, longest)]
        return law_s * (p + q * longest + (r + s * longest) * size)

    def to_dict(self) -> dict[str, object]:
        """Plain JSON data, from which `from_dict` makes an equal table."""
        return {
            "padded": self.padded,
            **asdict(self.base),
            "sizes": list(self.sizes),
            "lengths": list(self.lengths),
            "factors": [list(row) for row in self.factors],
            "samples": [list(astuple(sample)) for sample in self.samples],
        }

    @classmethod
    def from_dict(cls, data: object) -> "CostTable":
        """The table that `to_dict` gave. CorruptTable for anything that cannot be one."""
        if not isinstance(data, dict) or set(data) != {"padded", *_DEPTHS}:
            found = sorted(map(str, data)) if isinstance(data, dict) else type(data).__name__
            raise CorruptTable(f"A cost table has the keys padded, {', '.join(_DEPTHS)}. Found: {found}")
        if not isinstance(data["padded"], bool):
            raise CorruptTable(f"padded must be true or false. Found: {data['padded']!r}")
        law = PaddedCost if data["padded"] else PackedCost
        *terms, sizes, lengths, factors, samples = [_numbers(key, data[key], _DEPTHS[key]) for key in _DEPTHS]
        try:
            return cls(law(*terms), sizes, lengths, factors, tuple(map(_to_sample, samples)))
        except ValueError as error:
            raise CorruptTable(f"A cost table that cannot be true: {error}") from error


class LearnedCost:
    """`scale * table`: a table corrected by the measured seconds of every batch. Not thread-safe.

    The scale is the median of the last ratios of measured to tabulated seconds. So a step, such as another process that
    starts on the same device, is followed within eight batches, and a single outlier changes next to nothing.
    """

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self.scale = 1.0
        # Measured / tabulated. The table counts as two batches, so that the first batch alone decides nothing.
        self._recent = deque([1.0, 1.0], maxlen=_NUM_RECENT)
        self._errors = PredictionErrors()

    @property
    def padded(self) -> bool:
        return self.table.padded

    def seconds(self, tokens: float, squares: float, longest: float, count: float) -> float:
        return self.scale * self.table.seconds(tokens, squares, longest, count)

    def observe(self, tokens: int, squares: int, longest: int, count: int, measured_s: float) -> None:
        """Learn from one batch that ran. Impossible times (NaN, infinite, 0, negative, absurd) are ignored."""
        tabulated_s = self.table.seconds(tokens, squares, longest, count)
        predicted_s = self.scale * tabulated_s
        if not predicted_s / _ABSURD < measured_s < predicted_s * _ABSURD:
            return
        self._errors.note(predicted_s, measured_s)
        self._recent.append(measured_s / tabulated_s)
        self.scale = sorted(self._recent)[len(self._recent) // 2]

    def errors(self) -> tuple[float, float]:
        """See `PredictionErrors.quantiles`."""
        return self._errors.quantiles()


def _knot_lines(knots: FloatArray) -> FloatArray:
    """[len + 1, 2, len]: intercept and slope, in each gap between knots, of the weight of each knot's value.

    The first and the last gap lie outside the knots: there the edge has weight 1.
    """
    begins = np.append(0, np.arange(len(knots)))  # the knot at which each gap begins; the first gap has a slope of 0
    slopes = np.pad(np.diff(np.eye(len(knots)), axis=0) / np.diff(knots)[:, None], ((1, 1), (0, 0)))
    return np.stack([np.eye(len(knots))[begins] - slopes * knots[begins, None], slopes], axis=1)


def _numbers(name: str, value: object, depth: int) -> Any:
    """A finite number, or lists of such in lists, `depth` deep, as tuples."""
    if depth > 0:
        if not isinstance(value, list) or len(value) > _MAX_ENTRIES:
            raise CorruptTable(f"{name} must be a list of at most {_MAX_ENTRIES}. Found: {value!r:.40}")
        return tuple(_numbers(name, entry, depth - 1) for entry in value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _MAX_NUMBER:
        raise CorruptTable(f"{name} must hold finite numbers. Found: {value!r:.40}")
    return float(value)


def _to_sample(numbers: Sequence[float]) -> Sample:
    if len(numbers) != 5 or not all(number.is_integer() and number >= 1 for number in numbers[:4]) or numbers[4] <= 0:
        raise ValueError(f"A sample is [tokens, squares, longest, count, seconds]. Found: {numbers!r:.80}")
    tokens, squares, longest, count = map(int, numbers[:4])
    return Sample(tokens, squares, longest, count, numbers[4])
