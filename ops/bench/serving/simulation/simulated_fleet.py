"""Many workers: keys to partitions to workers. Once requests are assigned, workers do not affect each other, so each is
simulated alone, in parallel on all processor cores.
"""

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np
import numpy.typing as npt

from penstock.ops.bench.serving.loads.arrivals import Floats, poisson
from penstock.ops.bench.serving.loads.length_ranges import draw
from penstock.ops.bench.serving.loads.measured_driver import MeasuredDriver
from penstock.ops.bench.serving.loads.outcome import Outcome
from penstock.ops.bench.serving.loads.stream import Stream
from penstock.ops.bench.serving.simulation.simulate import NO_SCATTER, Scatter, noisy, simulate
from penstock.scheduler import CostFunction, Scheduler, SchedulerSettings

Ids = npt.NDArray[np.int64]

_WORTH_PROCESSES = 100_000  # requests; they take a second to start


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests of all clients together."""

    rate_per_s: float
    num_requests: int
    lengths: str  # a distribution's name
    num_keys: int | None = None  # recurring keys, as popular as Zipf's law says; None: every request has its own
    zipf: float = 1.0  # exponent of the keys' popularity; 0: all alike
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Fleet:
    """Equal workers of one consumer group."""

    num_workers: int
    settings: SchedulerSettings
    cost: CostFunction  # as predicted by the scheduler
    scatter: Scatter = NO_SCATTER
    num_partitions: int = 1024

    def __post_init__(self) -> None:
        if not 1 <= self.num_workers <= self.num_partitions:
            raise ValueError(
                f"{self.num_workers} workers for {self.num_partitions} partitions: each needs one at least."
            )


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """The outcome of all requests."""

    arrival: Floats
    finish: Floats  # nan: refused
    busy_s: Floats  # of each worker, all its lanes together
    num_refused: int

    @property
    def num_answered(self) -> int:
        return int(np.isfinite(self.finish).sum())

    @property
    def span_s(self) -> float:
        return float(self.arrival[-1])

    def percentile_s(self, percent: float) -> float:
        """Latency that `percent` of all requests do not exceed; a refused one is infinitely late."""
        latency = self.finish - self.arrival
        return float(np.percentile(np.where(np.isnan(latency), np.inf, latency), percent, method="higher"))

    def busy_s_per_million(self) -> float:
        """Lane seconds in batches for a million answers."""
        return float(self.busy_s.sum()) / self.num_answered * 1e6

    def paid_s_per_million(self) -> float:
        """Worker seconds for a million answers, idle ones too, until the last is given."""
        end_s = max(self.span_s, float(np.nanmax(self.finish)))
        return len(self.busy_s) * end_s / self.num_answered * 1e6


def simulate_fleet(traffic: Traffic, fleet: Fleet, *, num_processes: int = 1) -> FleetOutcome:
    """All of `traffic`, to the last answer. The same arguments give the same outcome."""
    arrival = poisson(traffic.rate_per_s, traffic.num_requests, traffic.seed)
    key, num_keys = _keys(traffic)
    lengths = draw(traffic.lengths, num_keys, traffic.seed + 1)[key]  # requests of one key are the same text
    partition = np.random.default_rng(traffic.seed + 2).integers(0, fleet.num_partitions, num_keys)[key]
    worker = partition % fleet.num_workers
    rows_of = [np.flatnonzero(worker == number) for number in range(fleet.num_workers)]
    streams = [Stream(arrival[rows], lengths[rows]) for rows in rows_of]
    seeds = [traffic.seed * 1000 + number for number in range(fleet.num_workers)]
    work = partial(_work, fleet)
    if num_processes == 1 or fleet.num_workers == 1 or traffic.num_requests < _WORTH_PROCESSES:
        outcomes = list(map(work, streams, seeds))
    else:
        with ProcessPoolExecutor(num_processes, get_context("spawn")) as pool:
            outcomes = list(pool.map(work, streams, seeds))
    finish = np.full(traffic.num_requests, np.nan)
    for rows, outcome in zip(rows_of, outcomes, strict=True):
        finish[rows] = outcome.finish
    refused = sum(sum(outcome.refused.values()) for outcome in outcomes)
    return FleetOutcome(arrival, finish, np.array([outcome.busy_s for outcome in outcomes]), refused)


def _work(fleet: Fleet, stream: Stream, seed: int) -> Outcome:
    driver = MeasuredDriver(Scheduler(fleet.settings, fleet.cost), fleet.settings.num_lanes)
    return simulate(stream, driver, noisy(fleet.cost, fleet.scatter, seed))


def _keys(traffic: Traffic) -> tuple[Ids, int]:
    """The key of each request, and the number of keys."""
    if traffic.num_keys is None:
        return np.arange(traffic.num_requests), traffic.num_requests
    popularity = np.arange(1, traffic.num_keys + 1) ** -traffic.zipf
    random = np.random.default_rng(traffic.seed + 3)
    return random.choice(traffic.num_keys, traffic.num_requests, p=popularity / popularity.sum()), traffic.num_keys
