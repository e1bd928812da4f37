"""Result of a part of a benchmark: comparisons within the run, tables, and every raw figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure beside its alternative and its floor. All three are of the run that prints it."""

    work: str
    ours: str  # with its unit
    baseline: str  # with its unit and its name; empty: none was measured
    ratio: float | None  # times better than the baseline; below 1 is worse
    floor: str = ""  # a bound of the hardware or of Kafka, with its name; empty: none was measured
    floor_share: float | None = None


@dataclass(frozen=True, slots=True)
class Grid:
    """A table beside the comparisons: of stages, of batch sizes tried, of processes."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | float]]


@dataclass(frozen=True, slots=True)
class PartResult:
    """Result of one part. `details` holds every raw figure, as JSON; kept tables are made from it alone."""

    comparisons: Sequence[Comparison] = ()
    grids: Sequence[Grid] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
