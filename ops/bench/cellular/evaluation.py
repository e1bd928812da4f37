"""The evaluation of one workload: peaks of all contestants, latencies at one rate, and a sweep of the load."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.ops.bench.cellular.cellular_tables import OURS, PADDING
from penstock.ops.bench.cellular.contestants import Contestant
from penstock.ops.bench.cellular.load import Clock
from penstock.ops.bench.cellular.measured_load import Figures, measure_peak, measure_rate, num_firsts
from penstock.ops.bench.cellular.workloads import Workload

SHARES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)  # of our peak


@dataclass(frozen=True, slots=True)
class Effort:
    """Seconds of each load, and the time at which no further one begins."""

    seconds: float
    in_flight: int  # at the peak: enough to fill the batches of all buckets
    ends: float  # time.monotonic()
    seed: int


class Evaluation:
    """Measures a workload. Its results grow with each load, and are told each time."""

    def __init__(self, effort: Effort, clock: Clock, on_figures: Callable[[dict[str, Any]], object]) -> None:
        self._effort, self._clock, self._on_figures = effort, clock, on_figures
        self.results: dict[str, Any] = {"error": None, "peaks": [], "at_half": [], "sweep": [], "skipped": []}
        self._num_firsts: Sequence[int] = ()

    def run(self, workload: Workload, contestants: Sequence[Contestant]) -> dict[str, Any]:
        """All loads. A baseline's best settings for a figure are those that were best for it in this run.

        Half of saturation is half of the smaller one of two peaks: ours, and the best padding's (of trees, the best
        baseline's). So no baseline is measured in overload.
        """
        self.results["requests"] = workload.described
        self._num_firsts = num_firsts(workload)
        self._warm_up(contestants[0])
        peaks = {contestant.label: self._peak(contestant) for contestant in contestants}
        ours = _best([contestant for contestant in contestants if contestant.name == OURS], peaks)
        half = 0.5 * min(peaks[ours.label], self._rival(contestants, peaks))
        self.results |= {"ours": ours.label, "half_per_s": half}
        p90 = {
            contestant.label: self._rate("at_half", contestant, half)
            for contestant in contestants
            if (contestant is ours or contestant.name != OURS) and peaks[contestant.label] > half
        }
        baselines = [contestant for contestant in contestants if contestant.name != OURS]
        best = [
            min(own, key=lambda contestant: p90[contestant.label])
            for name in dict.fromkeys(contestant.name for contestant in baselines)
            if (own := [one for one in baselines if one.name == name and one.label in p90])
        ]
        for share in SHARES:
            rate = share * peaks[ours.label]
            for contestant in [ours, *best]:
                if contestant is ours or rate < 0.95 * peaks[contestant.label]:
                    self._rate("sweep", contestant, rate)
        return self.results

    def _warm_up(self, contestant: Contestant) -> None:
        """Load what is compiled, before anything is measured."""
        effort = self._effort
        measure_peak(contestant, effort.in_flight, 0.1 * effort.seconds, self._clock)

    def _rival(self, contestants: Sequence[Contestant], peaks: dict[str, float]) -> float:
        names = {contestant.name for contestant in contestants} - {OURS}
        rivals = {PADDING} if PADDING in names else names
        return max((peaks[one.label] for one in contestants if one.name in rivals), default=float("inf"))

    def _peak(self, contestant: Contestant) -> float:
        effort = self._effort
        figures = self._load(
            "peaks",
            contestant,
            lambda: measure_peak(contestant, effort.in_flight, effort.seconds, self._clock),
        )
        return 0.0 if figures is None else float(figures["requests_per_s"])

    def _rate(self, kind: str, contestant: Contestant, rate: float) -> float:
        """The latency's p90 in milliseconds."""
        effort = self._effort
        figures = self._load(
            kind,
            contestant,
            lambda: measure_rate(contestant, rate, effort.seconds, self._clock, effort.seed, self._num_firsts),
        )
        return float("inf") if figures is None else float(figures["latency_ms"]["p90"])

    def _load(self, kind: str, contestant: Contestant, measure: Callable[[], Figures]) -> Figures | None:
        if time.monotonic() > self._effort.ends:
            self.results["skipped"].append(f"{kind}: {contestant.label}")
            return None
        figures = measure()
        self.results[kind].append(figures)
        self._on_figures(self.results)
        return figures


def _best(contestants: Sequence[Contestant], peaks: dict[str, float]) -> Contestant:
    return max(contestants, key=lambda contestant: peaks[contestant.label])
