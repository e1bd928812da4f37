"""The benchmark harness: one model on this machine, its engines and their costs, and runs of any system on them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from penstock.engine import Engine, load_engine
from penstock.engine.types import Int32Array
from penstock.ops.bench.common.lengths import Lengths
from penstock.ops.bench.common.setup import shuffled_texts
from penstock.ops.bench.serving.loads.arrivals import bursty, poisson
from penstock.ops.bench.serving.loads.drive import Requests, drive, random_ids
from penstock.ops.bench.serving.loads.length_ranges import draw
from penstock.ops.bench.serving.loads.measured_driver import MeasuredDriver
from penstock.ops.bench.serving.loads.outcome import Outcome, p50_p95
from penstock.ops.bench.serving.loads.padding import with_padding
from penstock.ops.bench.serving.loads.stream import Stream
from penstock.ops.bench.serving.loads.systems import EngineKind, Limits, System
from penstock.ops.bench.serving.simulation.noise import Noise, Overhead, noisy
from penstock.ops.bench.serving.simulation.simulate import simulate
from penstock.ops.demo.demo_model import model_directory
from penstock.producer.tokenization import Tokenizer
from penstock.scheduler import CostTable, LearnedCost, Scheduler
from penstock.worker.batching.startup_costs import measure_costs
from penstock.worker.garbage_collection import calm_garbage_collection
from penstock.worker.resolved_settings import resolve, scheduler_settings
from penstock.worker.settings import WorkerSettings

TEXTS = "banking77"  # a distribution that is not drawn at random: lengths of real messages
_SETTLED = 0.3  # share of a run that is left out, until its state is steady
_FEWEST_RATIOS = 10
_FEWEST_REQUESTS = 60


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one run."""

    lengths: str  # a distribution's name, or TEXTS
    rate_per_s: float
    seconds: float
    is_bursty: bool = False
    num_bulk: int = 0  # requests of the class bulk that there are from the beginning

    @property
    def count(self) -> int:
        """Number of online requests, at least _FEWEST_REQUESTS however slow the engine is."""
        return max(_FEWEST_REQUESTS, round(self.rate_per_s * self.seconds))


@dataclass(frozen=True, slots=True)
class Known:
    """One engine, its cost and its calibration."""

    engine: Engine
    cost: LearnedCost
    calibration_s: float
    check_errors: tuple[float, ...]  # |predicted / measured - 1| of batches left out of the fit


class BenchHarness:
    """Engines of one model, each loaded and calibrated at its first use. Costs keep learning from run to run."""

    def __init__(self, settings: WorkerSettings, packed: Engine, seed: int = 0) -> None:
        """`packed`: the runtime with the model of `settings`."""
        self._seed = seed
        self.packed = packed
        self.settings = resolve(settings, packed.info)
        self.num_lanes = self.settings.lanes
        self._known: dict[EngineKind, Known] = {}
        self._noise: dict[EngineKind, Noise] = {}
        self._overhead: dict[EngineKind, Overhead] = {}
        self._errors: dict[EngineKind, list[float]] = {}  # of every batch of every real run

    @classmethod
    def load(cls, model: Path, *, device: str, dtype: str, lanes: int | None = None) -> "BenchHarness":
        """The model on this machine, with a worker's defaults. `lanes`: None: a worker's."""
        sys.setswitchinterval(0.0005)  # as a worker does
        packed = load_engine(str(model), device=device, dtype=dtype, engine="packed")
        calm_garbage_collection()
        settings = {"model": str(model), "device": device, "dtype": dtype, "lanes": lanes}
        return cls(WorkerSettings.model_validate(settings), packed)

    @property
    def is_gpu(self) -> bool:
        return self.packed.info.device != "cpu"

    def limits(self, slo_s: float) -> Limits:
        """A worker's own."""
        return Limits(scheduler_settings(self.settings), slo_s)

    def known(self, kind: EngineKind) -> Known:
        """An engine, calibrated."""
        if kind not in self._known:
            self._known[kind] = self.measured(kind)
        return self._known[kind]

    def measured(self, kind: EngineKind) -> Known:
        """Load an engine and calibrate it, some 10 s."""
        engine, chosen = self._load(kind), self.settings
        caps = {"max_sequences": chosen.max_batch_sequences, "max_tokens": chosen.max_batch_tokens}
        costs = measure_costs(engine, **caps, reason="benchmark")
        errors = tuple(abs(sample.error(costs.table)) for sample in costs.checks)
        return Known(engine, LearnedCost(costs.table), costs.took_s, errors)

    def table(self, kind: EngineKind) -> CostTable:
        """The engine's present cost, as a table that does not change."""
        cost = self.known(kind).cost
        factors = np.array(cost.table.factors) * cost.scale
        return replace(cost.table, factors=tuple(map(tuple, factors.tolist())))

    def noise(self, kind: EngineKind) -> Noise:
        """Scatter of batches about predicted seconds: from real runs, or from calibration before the first real run."""
        if kind not in self._noise:
            return Noise.of_table(self.known(kind).cost.table)
        return self._noise[kind]

    def overhead(self, kind: EngineKind) -> Overhead:
        """Host time of a batch: from real runs; none before the first."""
        return self._overhead.get(kind, Overhead.none())

    def real(self, system: System, load: Load, *, grace_s: float) -> Outcome:
        """Run a load in real time."""
        outcome = self.driven(system, load, grace_s=grace_s)
        self._errors.setdefault(system.engine, []).extend(outcome.prediction_errors())
        return outcome

    def driven(self, system: System, load: Load, *, grace_s: float) -> Outcome:
        """The run itself."""
        known = self.known(system.engine)
        requests = self._requests(load)
        driver = MeasuredDriver(Scheduler(system.settings, known.cost), self.num_lanes)
        return drive(requests, driver, known.engine, known.cost, grace_s=grace_s)

    def simulated(self, system: System, load: Load, *, scatter: int = 0) -> Outcome:
        """The same load in the simulator; `scatter` is the seed of what its batches take."""
        table = self.table(system.engine)
        seconds = noisy(table, self.noise(system.engine), self._seed + scatter, self.overhead(system.engine))
        driver = MeasuredDriver(Scheduler(system.settings, table), self.num_lanes)
        return simulate(self._stream(load), driver, seconds)

    def learn(self, kind: EngineKind, outcomes: Sequence[Outcome]) -> None:
        """Take the simulator's noise and overhead from the batches of real runs.

        Scatter is about what was predicted when each batch was planned: the cost follows a device that grows slower or
        faster, and what it has become since is the table's part, not the scatter's.
        """
        runs = [(outcome.batches, _SETTLED * outcome.span_s, outcome.span_s) for outcome in outcomes]
        settled = [ran for batches, begin, end in runs for ran in batches if begin <= ran.started < end]
        if len(settled) < _FEWEST_RATIOS:
            return
        self._noise[kind] = Noise(np.array([ran.measured_s / ran.predicted_s for ran in settled]))
        self._overhead[kind] = Overhead.of(runs, self.overhead(kind))

    def capacity_per_s(self, kind: EngineKind, lengths: str, batch: int) -> float:
        """Requests a second by the cost alone, in batches of `batch` in the order of arrival."""
        drawn = self.lengths(lengths, 512)
        chunks = [drawn[begin : begin + batch] for begin in range(0, len(drawn), batch)]
        table = self.table(kind)
        seconds = sum(float(table.seconds(int(c.sum()), int((c * c).sum()), int(c.max()), len(c))) for c in chunks)
        return self.num_lanes * len(drawn) / seconds

    def lane_us_a_token(self, kind: EngineKind, lengths: str) -> dict[str, float]:
        """By the cost alone: of requests run one by one, and in batches as full as the caps allow."""
        mean = float(self.lengths(lengths, 512).mean())
        full = max(1, min(self.settings.max_batch_sequences, int(self.settings.max_batch_tokens / mean)))
        alone, together = (
            self.num_lanes / self.capacity_per_s(kind, lengths, batch) / mean * 1e6 for batch in (1, full)
        )
        return {"alone": alone, "full": together, "in_full": full}

    def longest_s(self, lengths: str) -> float:
        """Predicted seconds of the longest of a distribution, alone."""
        longest = int(self.lengths(lengths, 2000).max())
        return max(float(self.table(kind).seconds(longest, longest**2, longest, 1)) for kind in ("packed", "padded"))

    def describe(self) -> dict[str, Any]:
        """Each engine that was used, as a result file carries it."""
        return {
            kind: {
                "calibration_s": known.calibration_s,
                "check_errors": list(known.check_errors),
                "batches_run": len(self._errors.get(kind, ())),
                "run_errors": list(p50_p95(self._errors.get(kind, ()))),
                "table": self.table(kind).to_dict(),
                "noise": self.noise(kind).to_list(),
                "overhead": self.overhead(kind).to_dict(),
            }
            for kind, known in self._known.items()
        }

    def _load(self, kind: EngineKind) -> Engine:
        if kind == "packed":
            return self.packed
        if kind == "padding":
            return with_padding(self.packed)
        if kind == "padded":
            chosen = self.settings
            return load_engine(chosen.model, device=chosen.device, dtype=chosen.dtype, engine="padded")
        raise RuntimeError(f"No engine is of the kind {kind!r}. This is a bug.")

    def _requests(self, load: Load) -> Requests:
        stream = self._stream(load)
        if load.lengths == TEXTS:
            texts = self._texts
            return Requests(stream, [texts[index % len(texts)] for index in range(len(stream.lengths))])
        return Requests(stream, random_ids(stream.lengths, self.packed.info.vocab_size, self._seed))

    def _stream(self, load: Load) -> Stream:
        arrive = bursty if load.is_bursty else poisson
        online = arrive(load.rate_per_s, load.count, self._seed)
        lengths = self.lengths(load.lengths, load.count + load.num_bulk)
        return Stream.beside_bulk(online, lengths)

    def lengths(self, distribution: str, count: int) -> Lengths:
        """Tokens of `count` requests of a distribution, none longer than the model takes."""
        if distribution == TEXTS:
            of_texts = np.array([len(ids) for ids in self._texts], np.int64)
            return np.resize(of_texts, count)
        return np.minimum(draw(distribution, count, self._seed + 1), self.packed.info.max_tokens)

    @cached_property
    def _texts(self) -> list[Int32Array]:
        """Banking77's test messages as token ids, shuffled."""
        tokenizer = Tokenizer.from_directory(model_directory())  # BERT's vocabulary, and so the random model's too
        try:
            encoded = tokenizer.encode(shuffled_texts(3080), truncate=True, max_tokens=self.packed.info.max_tokens)
            return [one.ids for one in encoded]
        finally:
            tokenizer.close()
