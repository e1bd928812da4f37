"""What a benchmark claims: a figure beside its baseline, its floor, and what it must and should be."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Criterion:
    """Two thresholds on one number."""

    what: str  # the number, in words: "share of the floor"
    value: float
    must: float
    aim: float
    higher_is_better: bool = True

    @property
    def verdict(self) -> str:
        """ "aim", "must" or "missed"."""
        for name, threshold in (("aim", self.aim), ("must", self.must)):
            if self.value >= threshold if self.higher_is_better else self.value <= threshold:
                return name
        return "missed"


@dataclass(frozen=True, slots=True)
class Claim:
    """One row of the table. Every figure in it comes from the run that printed it."""

    work: str
    ours: str  # with its unit
    baseline: str  # with its unit and what it is
    ratio: float | None  # how many times better than the baseline; below 1 is worse
    floor: str  # a bound that nothing of this kind can pass, and what it is; empty: none was measured
    floor_share: float | None
    criterion: Criterion | None  # None: reported, not promised


@dataclass(frozen=True, slots=True)
class Grid:
    """A table beside the claims: of stages, of batch sizes tried, of processes."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]


@dataclass(frozen=True, slots=True)
class PartResult:
    """What a part hands to the report. `details` is every raw figure, as JSON carries it."""

    claims: Sequence[Claim] = ()
    grids: Sequence[Grid] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
