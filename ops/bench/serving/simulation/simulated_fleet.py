"""Many workers: keys to partitions to workers, a response cache in each, and a worker that is lost on the way.

Once requests are assigned, workers do not affect each other, so each is simulated alone, in parallel on all processor
cores. The exception is a loss: unanswered requests of the lost worker are redelivered to the others.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.ops.bench.common.lengths import Lengths
from penstock.ops.bench.serving.loads.arrivals import Floats, poisson
from penstock.ops.bench.serving.loads.length_ranges import draw
from penstock.ops.bench.serving.loads.measured_driver import MeasuredDriver
from penstock.ops.bench.serving.loads.stream import Stream
from penstock.ops.bench.serving.simulation.noise import Noise, Overhead, noisy
from penstock.ops.bench.serving.simulation.simulate import SimulatedWorker
from penstock.scheduler import CostFunction, Scheduler, SchedulerSettings

Ids = npt.NDArray[np.int64]

_WORTH_PROCESSES = 100_000  # requests; they take a second to start


@dataclass(frozen=True, slots=True)
class Traffic:
    """The requests of all clients together."""

    rate_per_s: float
    num_requests: int
    lengths: str  # a distribution's name
    repeat_share: float = 0.0  # of requests whose key is one of `num_keys`; every other one has a key of its own
    num_keys: int = 10_000
    zipf: float = 1.0  # exponent of the keys' popularity; 0: all alike
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Loss:
    """A worker that ends without leaving its group."""

    worker: int
    at_s: float
    noticed_after_s: float  # by the broker, which then reassigns its partitions; uncommitted records are read again


@dataclass(frozen=True, slots=True)
class Fleet:
    """Equal workers of one consumer group."""

    num_workers: int
    settings: SchedulerSettings
    cost: CostFunction  # as predicted by the scheduler
    noise: Noise  # scatter of real times about predicted ones
    overhead: Overhead = field(default_factory=Overhead.none)
    num_partitions: int = 1024
    routing: Literal["key", "spread"] = "key"  # a key's partition is always the same, or any
    has_cache: bool = False  # a repeated key is answered by its worker at no cost, once the first is
    loss: Loss | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.num_workers <= self.num_partitions:
            raise ValueError(
                f"{self.num_workers} workers for {self.num_partitions} partitions: each needs one at least."
            )
        if self.loss is not None and self.num_workers < 2:
            raise ValueError("The loss of the only worker leaves none to answer.")


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """The outcome of all requests."""

    arrival: Floats
    finish: Floats  # nan: refused
    worker: Ids  # which answered, or refused, each
    busy_s: Floats  # of each worker, all its lanes together
    num_refused: int
    num_hits: int  # answered from a cache
    num_moved: int  # that another worker had to answer
    num_batches: int
    scheduler_s: float

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


class _Part(NamedTuple):
    """The requests of one worker. Crosses processes."""

    stream: Stream
    settings: SchedulerSettings
    cost: CostFunction
    noise: Noise
    overhead: Overhead
    seed: int
    until: float


class _Done(NamedTuple):
    finish: Floats
    busy_s: float
    num_refused: int
    num_batches: int
    scheduler_s: float


def simulate_fleet(traffic: Traffic, fleet: Fleet, *, num_processes: int = 1) -> FleetOutcome:
    """All of `traffic`, to the last answer. The same arguments give the same outcome, but for `scheduler_s`."""
    return _Simulation(traffic, fleet, num_processes).run()


class _Simulation:
    """The arrays of one run, one entry a request."""

    def __init__(self, traffic: Traffic, fleet: Fleet, num_processes: int) -> None:
        self._fleet = fleet
        self._seed = traffic.seed
        self._num_processes = num_processes
        self._arrival = poisson(traffic.rate_per_s, traffic.num_requests, traffic.seed)
        self._lengths = draw(traffic.lengths, traffic.num_requests, traffic.seed + 1)
        self._key, self._partition = _keys(traffic, fleet)
        self._lengths = _alike(self._key, self._lengths, traffic.num_keys)
        self._worker = self._partition % fleet.num_workers
        self._delivered = self._arrival.copy()
        self._finish = np.full(traffic.num_requests, np.nan)
        self._busy_s = np.zeros(fleet.num_workers)
        self._num_refused = self._num_hits = self._num_moved = self._num_batches = 0
        self._scheduler_s = 0.0

    def run(self) -> FleetOutcome:
        everything = np.arange(len(self._arrival))
        loss = self._fleet.loss
        self._work_off(everything if loss is None else self._after_loss(loss))
        return FleetOutcome(
            self._arrival,
            self._finish,
            self._worker,
            self._busy_s,
            self._num_refused,
            self._num_hits,
            self._num_moved,
            self._num_batches,
            self._scheduler_s,
        )

    def _after_loss(self, loss: Loss) -> Ids:
        """Simulate the lost worker up to its loss, and redeliver its unanswered requests. Returns all requests left."""
        fleet = self._fleet
        lost = np.flatnonzero(self._worker == loss.worker)
        self._work_off(lost[self._arrival[lost] <= loss.at_s], until=loss.at_s)
        moved = lost[np.isnan(self._finish[lost])]
        self._num_refused = 0  # requests that it rejected are delivered again: rejections were not committed
        self._num_moved = len(moved)
        others = np.array([worker for worker in range(fleet.num_workers) if worker != loss.worker])
        self._worker[moved] = others[self._partition[moved] % len(others)]
        self._delivered[moved] = np.maximum(self._arrival[moved], loss.at_s + loss.noticed_after_s)
        left = np.flatnonzero(self._worker != loss.worker)
        return left[np.argsort(self._delivered[left], kind="stable")]

    def _work_off(self, requests: Ids, until: float = np.inf) -> None:
        """`requests`, by delivery."""
        first = self._first_of_its_key(requests)
        computed = requests[first == requests]
        parts = list(self._parts(computed, until))
        for (rows, _), done in zip(parts, self._map([part for _, part in parts]), strict=True):
            self._finish[rows] = done.finish
            self._busy_s[self._worker[rows[0]]] += done.busy_s
            self._num_refused += done.num_refused
            self._num_batches += done.num_batches
            self._scheduler_s += done.scheduler_s
        repeated = first != requests
        hits, sources = requests[repeated], first[repeated]
        # A repeat that comes while the first is computed waits for its result, and shares its refusal.
        self._finish[hits] = np.maximum(self._delivered[hits], self._finish[sources])
        if until != np.inf:
            self._finish[hits[self._finish[hits] > until]] = np.nan
        self._num_hits += int(np.isfinite(self._finish[hits]).sum())
        self._num_refused += int(np.isnan(self._finish[hits]).sum())

    def _first_of_its_key(self, requests: Ids) -> Ids:
        """For each request the first one that its worker saw with the same key, itself if there was none."""
        if not self._fleet.has_cache:
            return requests
        together = self._key[requests] * self._fleet.num_workers + self._worker[requests]
        _, first, which = np.unique(together, return_index=True, return_inverse=True)
        return np.asarray(requests[first[which]])

    def _parts(self, requests: Ids, until: float) -> Iterator[tuple[Ids, _Part]]:
        """The requests of each worker that has any."""
        fleet = self._fleet
        order = np.argsort(self._worker[requests], kind="stable")
        by_worker = requests[order]
        workers, begins = np.unique(self._worker[by_worker], return_index=True)
        for worker, rows in zip(workers.tolist(), np.split(by_worker, begins[1:]), strict=True):
            stream = Stream(self._delivered[rows], self._lengths[rows])
            seed = self._seed * 1000 + worker
            yield rows, _Part(stream, fleet.settings, fleet.cost, fleet.noise, fleet.overhead, seed, until)

    def _map(self, parts: list[_Part]) -> Iterator[_Done]:
        is_short = sum(len(part.stream.arrival) for part in parts) < _WORTH_PROCESSES
        if self._num_processes == 1 or len(parts) == 1 or is_short:
            return map(_work, parts)
        with ProcessPoolExecutor(self._num_processes, get_context("spawn")) as pool:
            return iter(list(pool.map(_work, parts)))


def _work(part: _Part) -> _Done:
    driver = MeasuredDriver(Scheduler(part.settings, part.cost), part.settings.num_lanes)
    worker = SimulatedWorker(part.stream, driver, noisy(part.cost, part.noise, part.seed, part.overhead))
    worker.run(part.until)
    outcome = worker.outcome()
    finish = np.where(outcome.finish <= part.until, outcome.finish, np.nan)
    return _Done(finish, outcome.busy_s, outcome.num_refused, worker.num_batches, outcome.scheduler_s)


def _keys(traffic: Traffic, fleet: Fleet) -> tuple[Ids, Ids]:
    """Key and partition of each request. Recurring keys are 0 to num_keys - 1; every other request has its own."""
    random = np.random.default_rng(traffic.seed + 2)
    count = traffic.num_requests
    popularity = np.arange(1, traffic.num_keys + 1) ** -traffic.zipf
    cumulated = np.cumsum(popularity / popularity.sum())
    recurring = np.minimum(np.searchsorted(cumulated, random.random(count)), traffic.num_keys - 1)
    repeats = random.random(count) < traffic.repeat_share
    key = np.where(repeats, recurring, traffic.num_keys + np.arange(count))
    partition = random.integers(0, fleet.num_partitions, count)
    if fleet.routing == "key":
        partition_of_key = random.integers(0, fleet.num_partitions, traffic.num_keys)
        partition = np.where(repeats, partition_of_key[recurring], partition)
    return key, partition


def _alike(key: Ids, lengths: Lengths, num_keys: int) -> Lengths:
    """Requests of one recurring key are the same text, so of one length."""
    repeats = key < num_keys
    of_key = np.resize(lengths, num_keys)
    return np.where(repeats, of_key[np.minimum(key, num_keys - 1)], lengths)
