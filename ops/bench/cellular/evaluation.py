"""The suite of cells: peaks of all contestants over one workload, and their latencies at half of saturation."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from penstock.ops.bench.cellular.cellular_tables import OURS, PADDING
from penstock.ops.bench.cellular.contestants import Contestant, Tried, contestants
from penstock.ops.bench.cellular.load import Clock, Driver, MonotonicClock, percentiles_ms, throughput
from penstock.ops.bench.cellular.nn_lstm import LstmModel, offline_requests_per_s
from penstock.ops.bench.cellular.workloads import WORKLOADS, Shape, wmt_like_lengths
from penstock.ops.bench.common.draws import poisson
from penstock.ops.bench.common.part_bench import DeadlinePassed
from penstock.ops.bench.gpu.device_bench import DeviceBench
from penstock.worker.garbage_collection import calm_garbage_collection

WARM_UP = 0.2  # of a load's seconds; requests of the warm-up are not counted
_MARGIN_S = 5.0  # of the part's time, for the load underway

Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a run on one kind of device."""

    shape: Shape
    tried: Mapping[str, Tried]
    seconds: float  # of each load
    in_flight: int  # at the peak: enough to fill the batches of all buckets
    offline_sentences: int
    offline_rows: int


class CellularBench(DeviceBench):
    """The paper's sizes on a GPU; on a CPU small ones, which show that everything works and not the paper's figures."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        super().__init__(options)
        device = self.device
        if device.type == "cpu":
            torch.set_num_threads(1)  # as the engine of cells has them
            shape = Shape(64, 2048, 512, 32, 4096, torch.float32, device)
            chains = Tried(rows=(32,), quanta=(4,), widths=(10, 40), trees=())
            trees = Tried(rows=(32,), quanta=(1,), widths=(), trees=(8, 32))
            self.sizes = Sizes(shape, {"lstm": chains, "tree": trees}, 0.25, 256, 256, 32)
        else:
            shape = Shape(1024, 30_000, 8192, 512, 16_384, torch.float16, device)
            chains = Tried(rows=(512, 256), quanta=(32, 16, 8), widths=(5, 10, 20, 40), trees=())
            trees = Tried(rows=(512, 128, 64), quanta=(1,), widths=(), trees=(64, 128, 256))
            self.sizes = Sizes(shape, {"lstm": chains, "tree": trees}, 0.8, 8192, 51_200, 512)


def run(bench: CellularBench, name: str) -> Figures:
    """A part of the suite. Loads that find no time are failures of their contestants."""
    sizes = bench.sizes
    workload = WORKLOADS[name](sizes.shape, bench.seed)
    calm_garbage_collection()
    offline = {} if workload.lstm is None else {"offline": _offline(workload.lstm, sizes, bench.seed)}
    evaluation = Evaluation(sizes, bench.seed, MonotonicClock(), bench.ends - _MARGIN_S)
    try:
        evaluation.run(contestants(workload, sizes.tried[name]))
    except DeadlinePassed as error:  # what was measured until then counts
        bench.failures["the load underway"] = {"error": str(error), "where": name, "count": 1}
    for label in evaluation.results["skipped"]:
        bench.failures[label] = {"error": "the time was up", "where": name, "count": 1}
    return {**offline, **evaluation.results}


class Evaluation:
    """Measures contestants: no load begins after `ends`, by time.monotonic(). Its results grow with each load."""

    def __init__(self, sizes: Sizes, seed: int, clock: Clock, ends: float) -> None:
        self._sizes, self._seed, self._clock, self._ends = sizes, seed, clock, ends
        self.results: Figures = {"peaks": [], "at_half": [], "skipped": []}

    def run(self, contestants: Sequence[Contestant]) -> Figures:
        """All loads. A baseline's best settings for a figure are those that were best for it in this run.

        Half of saturation is half of the smaller one of two peaks: ours, and the best padding's (of trees, the best
        baseline's). So no baseline is measured in overload.
        """
        self._peak(contestants[0], 0.1 * self._sizes.seconds)  # loads what is compiled, before anything is measured
        peaks = {one.label: 0.0 for one in contestants}
        for one in contestants:
            if found := self._load("peaks", one, partial(self._peak, one, self._sizes.seconds)):
                peaks[one.label] = found["requests_per_s"]
        top = max([one for one in contestants if one.name == OURS], key=lambda one: peaks[one.label])
        half = 0.5 * min(peaks[top.label], _rival(contestants, peaks))
        self.results |= {"ours": top.label, "half_per_s": half}
        for one in contestants:
            if (one is top or one.name != OURS) and peaks[one.label] > half:
                self._load("at_half", one, partial(self._rate, one, half))
        return self.results

    def _peak(self, contestant: Contestant, seconds: float) -> Figures:
        """Throughput of a closed loop."""
        in_flight = self._sizes.in_flight
        offered = Driver(contestant.make(), contestant.works, self._clock).saturate(in_flight, seconds)
        begin, end = offered.began + WARM_UP * seconds, offered.began + seconds
        return {"in_flight": in_flight, "requests_per_s": throughput(offered, begin, end)}

    def _rate(self, contestant: Contestant, rate_per_s: float) -> Figures:
        """Throughput and latencies of an open loop with Poisson arrivals, the same ones of all contestants."""
        seconds = self._sizes.seconds
        arrivals = poisson(rate_per_s, max(2, round(rate_per_s * seconds)), self._seed)
        arrivals *= seconds / arrivals[-1]  # a short load has the rate that it says, too
        offered = Driver(contestant.make(), contestant.works, self._clock).offer(arrivals)
        first, last = offered.arrivals[0], offered.arrivals[-1]
        counted = offered.arrivals >= first + WARM_UP * (last - first)
        return {
            "offered_per_s": rate_per_s,
            "throughput_per_s": throughput(offered, offered.arrivals[counted][0], last),
            "latency_ms": percentiles_ms(offered.ends[counted] - offered.arrivals[counted]),
            "counted": int(counted.sum()),
        }

    def _load(self, kind: str, contestant: Contestant, measure: Callable[[], Figures]) -> Figures | None:
        if time.monotonic() > self._ends:
            self.results["skipped"].append(f"{kind}: {contestant.label}")
            return None
        figures = {"contestant": contestant.name, "settings": dict(contestant.settings), **measure()}
        self.results[kind].append(figures)
        return figures


def _rival(contestants: Sequence[Contestant], peaks: Mapping[str, float]) -> float:
    names = {contestant.name for contestant in contestants} - {OURS}
    rivals = {PADDING} if PADDING in names else names
    return max((peaks[one.label] for one in contestants if one.name in rivals), default=float("inf"))


def _offline(model: LstmModel, sizes: Sizes, seed: int) -> dict[str, float]:
    """Requests a second of nn.LSTM over sentences that are all known before, sorted by length."""
    lengths = wmt_like_lengths(sizes.offline_sentences, seed)
    tokens = np.random.default_rng(seed).integers(0, len(model.words), int(lengths.sum()), dtype=np.int32)
    sentences = np.split(tokens, np.cumsum(lengths)[:-1])
    return {"requests_per_s": offline_requests_per_s(model, sentences, sizes.offline_rows)}
