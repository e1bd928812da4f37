"""The benchmark harness: one model on this machine, its engines and their costs, and runs of any system on them."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from penstock.engine import Engine, load_engine
from penstock.ops.bench.common.lengths import Lengths
from penstock.ops.bench.common.setup import shuffled_texts
from penstock.ops.bench.serving.loads.arrivals import bursty, poisson
from penstock.ops.bench.serving.loads.drive import drive, random_ids
from penstock.ops.bench.serving.loads.length_ranges import draw
from penstock.ops.bench.serving.loads.measured_driver import MeasuredDriver
from penstock.ops.bench.serving.loads.outcome import Outcome
from penstock.ops.bench.serving.loads.stream import Stream
from penstock.ops.bench.serving.loads.systems import EngineKind, System, system_of
from penstock.ops.bench.serving.simulation.simulate import noisy, scatter_of, simulate
from penstock.ops.demo.demo_model import model_directory
from penstock.producer.tokenization import Tokenizer
from penstock.scheduler import CostTable, LearnedCost, Scheduler
from penstock.worker.batching.startup_costs import measure_costs
from penstock.worker.garbage_collection import calm_garbage_collection
from penstock.worker.resolved_settings import resolve, scheduler_settings
from penstock.worker.settings import WorkerSettings

MESSAGES = "banking77"  # a distribution that is not drawn at random: lengths of real messages
_FEWEST_REQUESTS = 60


@dataclass(frozen=True, slots=True)
class Load:
    """The load of one run."""

    lengths: str  # a distribution's name, or MESSAGES
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


class BenchHarness:
    """Engines of one model, each loaded and calibrated at its first use. Costs keep learning from run to run."""

    def __init__(self, settings: WorkerSettings, packed: Engine, seed: int = 0) -> None:
        """`packed`: the runtime with the model of `settings`."""
        self._seed = seed
        self.packed = packed
        self.settings = resolve(settings, packed.info)
        self.num_lanes = self.settings.lanes
        self._known: dict[EngineKind, Known] = {}
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

    def system(self, name: str, slo_s: float) -> System:
        """A system of `loads.systems`, beside a worker's own settings."""
        return system_of(name, scheduler_settings(self.settings), slo_s)

    def known(self, kind: EngineKind) -> Known:
        """An engine, calibrated."""
        if kind not in self._known:
            self._known[kind] = self.measured(kind)
        return self._known[kind]

    def measured(self, kind: EngineKind) -> Known:
        """Load an engine and calibrate it, some 10 s."""
        chosen = self.settings
        engine = self.packed
        if kind == "padded":
            engine = load_engine(chosen.model, device=chosen.device, dtype=chosen.dtype, engine="padded")
        caps = {"max_sequences": chosen.max_batch_sequences, "max_tokens": chosen.max_batch_tokens}
        costs = measure_costs(engine, **caps, reason="benchmark")
        return Known(engine, LearnedCost(costs.table), costs.took_s)

    def table(self, kind: EngineKind) -> CostTable:
        """The engine's present cost, as a table that does not change."""
        cost = self.known(kind).cost
        factors = np.array(cost.table.factors) * cost.scale
        return replace(cost.table, factors=tuple(map(tuple, factors.tolist())))

    def real(self, system: System, load: Load, *, grace_s: float) -> Outcome:
        """Run a load in real time."""
        outcome = self.driven(system, load, grace_s=grace_s)
        self._errors.setdefault(system.engine, []).extend(outcome.prediction_errors())
        return outcome

    def driven(self, system: System, load: Load, *, grace_s: float) -> Outcome:
        """The run itself."""
        known, stream = self.known(system.engine), self._stream(load)
        driver = MeasuredDriver(Scheduler(system.settings, known.cost), self.num_lanes)
        token_ids = random_ids(stream.lengths, self.packed.info.vocab_size, self._seed)
        return drive(stream, token_ids, driver, known.engine, known.cost, grace_s=grace_s)

    def simulated(self, system: System, load: Load) -> Outcome:
        """The same load in the simulator."""
        table = self.table(system.engine)
        driver = MeasuredDriver(Scheduler(system.settings, table), self.num_lanes)
        return simulate(self._stream(load), driver, noisy(table, scatter_of(table), self._seed))

    def capacity_per_s(self, system: System, lengths: str) -> float:
        """Requests a second by the cost alone, in full batches in the order of arrival."""
        drawn, batch = self.lengths(lengths, 512), system.settings.max_batch_sequences
        chunks = [drawn[begin : begin + batch] for begin in range(0, len(drawn), batch)]
        table = self.table(system.engine)
        seconds = sum(float(table.seconds(int(c.sum()), int((c * c).sum()), int(c.max()), len(c))) for c in chunks)
        return self.num_lanes * len(drawn) / seconds

    def longest_s(self, lengths: str) -> float:
        """Predicted seconds of the longest of a distribution, alone."""
        longest = int(self.lengths(lengths, 2000).max())
        return max(float(self.table(kind).seconds(longest, longest**2, longest, 1)) for kind in ("packed", "padded"))

    def describe(self) -> dict[str, Any]:
        """Each engine that was used, as a result file carries it."""
        return {
            kind: {
                "calibration_s": known.calibration_s,
                "batches_run": len(self._errors.get(kind, ())),
                "run_errors": _p50_p95(self._errors.get(kind, ())),
                "table": self.table(kind).to_dict(),
            }
            for kind, known in self._known.items()
        }

    def lengths(self, distribution: str, count: int) -> Lengths:
        """Tokens of `count` requests of a distribution, none longer than the model takes."""
        if distribution == MESSAGES:
            return np.resize(self._of_messages, count)
        return np.minimum(draw(distribution, count, self._seed + 1), self.packed.info.max_tokens)

    def _stream(self, load: Load) -> Stream:
        arrive = bursty if load.is_bursty else poisson
        online = arrive(load.rate_per_s, load.count, self._seed)
        return Stream.beside_bulk(online, self.lengths(load.lengths, load.count + load.num_bulk))

    @cached_property
    def _of_messages(self) -> Lengths:
        """Tokens of Banking77's test messages, shuffled."""
        tokenizer = Tokenizer.from_directory(model_directory())  # BERT's vocabulary, and so the random model's too
        try:
            encoded = tokenizer.encode(shuffled_texts(3080), truncate=True, max_tokens=self.packed.info.max_tokens)
            return np.array([len(one.ids) for one in encoded], np.int64)
        finally:
            tokenizer.close()


def _p50_p95(errors: Sequence[float]) -> list[float]:
    """Empty where no batch was run."""
    found: list[float] = np.percentile(errors, (50, 95)).tolist() if errors else []
    return found
