"""The evaluation of one workload: peaks of all contestants, latencies at one rate, and a sweep of the load."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from penstock.ops.bench.cellular.cellular_bench import CellularBench, Sizes
from penstock.ops.bench.cellular.cellular_tables import OURS, PADDING
from penstock.ops.bench.cellular.contestants import Contestant, contestants, ours
from penstock.ops.bench.cellular.load import Clock, MonotonicClock
from penstock.ops.bench.cellular.measured_load import Figures, measure_peak, measure_rate, num_firsts
from penstock.ops.bench.cellular.nn_lstm import LstmModel, offline_requests_per_s
from penstock.ops.bench.cellular.null_engine import NullEngine
from penstock.ops.bench.cellular.requests import wmt_like_lengths
from penstock.ops.bench.cellular.workloads import WORKLOADS, Workload
from penstock.ops.bench.common.part_bench import DeadlinePassed
from penstock.worker.garbage_collection import calm_garbage_collection

SHARES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)  # of our peak
_MARGIN_S = 5.0  # of the part's time, for the load underway


def run(bench: CellularBench, name: str) -> dict[str, Any]:
    """A part of the suite. Loads that find no time are failures of their contestants."""
    sizes, seed = bench.sizes, bench.seed
    workload = WORKLOADS[name](sizes.shape, seed)
    calm_garbage_collection()
    evaluation = Evaluation(workload, sizes, seed, MonotonicClock(), bench.ends - _MARGIN_S)
    results = {"host": evaluation.peak_without_device()}
    if workload.lstm is not None:
        results["offline"] = _offline(workload.lstm, sizes, seed)
    try:
        evaluation.run(contestants(workload, sizes.tried[name]))
    except DeadlinePassed as error:  # what was measured until then counts
        bench.failures["the load underway"] = {"error": str(error), "where": name, "count": 1}
    for label in evaluation.results["skipped"]:
        bench.failures[label] = {"error": "the time was up", "where": name, "count": 1}
    return {**results, **evaluation.results}


class Evaluation:
    """Measures a workload: no load begins after `ends`, by time.monotonic(). Its results grow with each load."""

    def __init__(self, workload: Workload, sizes: Sizes, seed: int, clock: Clock, ends: float) -> None:
        self._workload, self._sizes, self._seed, self._clock, self._ends = workload, sizes, seed, clock, ends
        self._num_firsts = num_firsts(workload)
        self.results: dict[str, Any] = {"peaks": [], "at_half": [], "sweep": [], "skipped": []}

    def peak_without_device(self) -> Figures:
        """The peak of ours over an engine that computes nothing: what the host alone could serve."""
        engine = NullEngine(self._workload.model.specs, self._workload.engine.num_slots)
        tried = self._sizes.tried[self._workload.name]
        contestant = ours(replace(self._workload, engine=engine), tried.rows[0], tried.quanta[0])
        self._warm_up(contestant)
        return measure_peak(contestant, self._sizes.in_flight, self._sizes.seconds, self._clock)

    def run(self, contestants: Sequence[Contestant]) -> dict[str, Any]:
        """All loads. A baseline's best settings for a figure are those that were best for it in this run.

        Half of saturation is half of the smaller one of two peaks: ours, and the best padding's (of trees, the best
        baseline's). So no baseline is measured in overload.
        """
        self._warm_up(contestants[0])
        peaks = {contestant.label: self._peak(contestant) for contestant in contestants}
        top = max([one for one in contestants if one.name == OURS], key=lambda one: peaks[one.label])
        half = 0.5 * min(peaks[top.label], _rival(contestants, peaks))
        self.results |= {"ours": top.label, "half_per_s": half}
        for contestant in contestants:
            if (contestant is top or contestant.name != OURS) and peaks[contestant.label] > half:
                self._rate("at_half", contestant, half)
        for share in SHARES:
            self._rate("sweep", top, share * peaks[top.label])
        return self.results

    def _warm_up(self, contestant: Contestant) -> None:
        """Load what is compiled, before anything is measured."""
        measure_peak(contestant, self._sizes.in_flight, 0.1 * self._sizes.seconds, self._clock)

    def _peak(self, contestant: Contestant) -> float:
        def measure() -> Figures:
            return measure_peak(contestant, self._sizes.in_flight, self._sizes.seconds, self._clock)

        figures = self._load("peaks", contestant, measure)
        return 0.0 if figures is None else float(figures["requests_per_s"])

    def _rate(self, kind: str, contestant: Contestant, rate: float) -> None:
        def measure() -> Figures:
            return measure_rate(contestant, rate, self._sizes.seconds, self._clock, self._seed, self._num_firsts)

        self._load(kind, contestant, measure)

    def _load(self, kind: str, contestant: Contestant, measure: Callable[[], Figures]) -> Figures | None:
        if time.monotonic() > self._ends:
            self.results["skipped"].append(f"{kind}: {contestant.label}")
            return None
        figures = measure()
        self.results[kind].append(figures)
        return figures


def _rival(contestants: Sequence[Contestant], peaks: dict[str, float]) -> float:
    names = {contestant.name for contestant in contestants} - {OURS}
    rivals = {PADDING} if PADDING in names else names
    return max((peaks[one.label] for one in contestants if one.name in rivals), default=float("inf"))


def _offline(model: LstmModel, sizes: Sizes, seed: int) -> dict[str, float]:
    """Requests a second of nn.LSTM over sentences that are all known before, sorted by length."""
    lengths = wmt_like_lengths(sizes.offline_sentences, seed)
    tokens = np.random.default_rng(seed).integers(0, len(model.words), int(lengths.sum()), dtype=np.int32)
    sentences = np.split(tokens, np.cumsum(lengths)[:-1])
    return {"requests_per_s": offline_requests_per_s(model, sentences, sizes.offline_rows)}
