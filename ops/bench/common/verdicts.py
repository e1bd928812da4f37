"""Medians of kept runs, and whether they reach the targets of `ops/bench/targets.json`.

A verdict needs three runs of one commit on one machine. No run is left out, and none is repeated to reach a target.
"""

import json
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock.ops.bench.common.markdown import cell

MIN_RUNS = 3
TARGETS = Path(__file__).resolve().parent.parent / "targets.json"


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the runs that have it; at least one does."""

    values: tuple[float, ...]
    num_runs: int = 0  # of the table's caption; the figure says where it comes from fewer

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def __str__(self) -> str:
        """Median, and min to max where there is more than one run, with about three digits.

        Where fewer runs have the figure than the caption says, their number follows: "35,591 (1 run)".
        """
        median, low, high = (cell(float(f)) for f in (self.median, min(self.values), max(self.values)))
        count = len(self.values)
        told = [f"{low} to {high}"] if count > 1 else []
        told += [f"{count} run{'s' if count > 1 else ''}"] if count < self.num_runs else []
        return f"{median} ({', '.join(told)})" if told else median


@dataclass(frozen=True, slots=True)
class Target:
    """Two thresholds for one measure of a suite. Targets are data: no benchmark fails by them."""

    measure: str
    must: float
    aim: float
    lower_is_better: bool = False

    def verdict(self, spread: Spread) -> str:
        """Of the median: "met", "met, and the aim" or "missed"; fewer than three runs have none."""
        count = len(spread.values)
        if count < MIN_RUNS:
            return f"{count} run{'s' if count > 1 else ''}, no verdict"
        if not self._reaches(spread.median, self.must):
            return "missed"
        return "met, and the aim" if self._reaches(spread.median, self.aim) else "met"

    def _reaches(self, value: float, threshold: float) -> bool:
        return value <= threshold if self.lower_is_better else value >= threshold


def targets(suite: str, path: Path = TARGETS) -> list[Target]:
    """The targets of a suite, in the order of the file."""
    return [Target(**target) for target in json.loads(path.read_text(encoding="utf-8")).get(suite, [])]


def spread(values: Iterable[float | None]) -> Spread | None:
    """The figures that were measured, of one run each; None where no run has one."""
    every = tuple(values)
    found = tuple(value for value in every if value is not None)
    return Spread(found, len(every)) if found else None
