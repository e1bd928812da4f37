"""The engines of the ablation: simulated by the cost table of a kept run, or this machine's own in real time."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np

from penstock.engine import Engine
from penstock.ops.bench.common.runs import RESULTS
from penstock.ops.bench.serving.harness.harness import BenchHarness
from penstock.ops.bench.serving.harness.run_plan import RunPlan
from penstock.ops.bench.serving.loads.drive import Requests, drive, random_ids
from penstock.ops.bench.serving.loads.measured_driver import MeasuredDriver
from penstock.ops.bench.serving.loads.outcome import Outcome
from penstock.ops.bench.serving.loads.stream import Stream
from penstock.ops.bench.serving.loads.systems import EngineKind, default
from penstock.ops.bench.serving.parts.saturation import SINCE, overloaded
from penstock.ops.bench.serving.simulation.noise import Noise, Overhead, Seconds, noisy
from penstock.ops.bench.serving.simulation.simulate import simulate
from penstock.scheduler import CostTable, LearnedCost, PackedCost, SchedulerSettings

KEPT = {
    "CPU": "serving/amd-epyc-2-cores/20261122T000346Z-10b68f6.json",
    "H200": "serving/nvidia-h200/20261121T232251Z-6a52b27.json",
}
LENGTHS = "2-100"
_MAX_WAIT_S = 0.002
_REQUESTS = {"CPU": 3_000, "H200": 60_000}  # of one simulated run at saturation; fewer or more by its load
_SHARES = {"packed": 1.0, "padded": 0.5}  # of these, by engine
_NO_TIME = PackedCost(0.0, 0.0, 0.0, 0.0)


class Device(Protocol):
    """One engine, and what its runs are made from."""

    @property
    def settings(self) -> SchedulerSettings: ...

    @property
    def slo_s(self) -> float: ...

    @property
    def saturation_per_s(self) -> float: ...

    @property
    def requests(self) -> float:
        """Of one run at saturation; fewer or more by its load."""

    @property
    def table(self) -> CostTable:
        """The cost table with which the scheduler starts; it learns the rest."""

    def drifted(self, drift: float) -> Self:
        """The device where every batch takes `drift` times what the table says."""

    def play(self, stream: Stream, driver: MeasuredDriver, cost: LearnedCost, seed: int) -> Outcome:
        """Run a load. `cost`, which is the driver's, learns from the batches."""


@dataclass(frozen=True, slots=True)
class SimulatedDevice:
    """One engine of a kept run. Batches take what the run's table, noise and host time say."""

    table: CostTable
    noise: Noise
    overhead: Overhead
    settings: SchedulerSettings
    slo_s: float
    saturation_per_s: float  # of its best system
    requests: float
    drift: float = 1.0

    @classmethod
    def kept(cls, name: str, engine: EngineKind) -> "SimulatedDevice":
        """`name`: one of KEPT."""
        record: Mapping[str, Any] = json.loads((RESULTS / KEPT[name]).read_text(encoding="utf-8"))
        kept, workload = record["engines"][engine], record["parts"]["saturation"][0]
        caps = record["max_batch_sequences"], record["max_batch_tokens"]
        return cls(
            CostTable.from_dict(kept["table"]),
            Noise(np.array(kept["noise"])),
            Overhead.from_dict(kept["overhead"]),
            SchedulerSettings(_MAX_WAIT_S, *caps, workload["slo_s"], num_lanes=record["num_lanes"]),
            workload["slo_s"],
            max(row["saturation_per_s"] for row in workload["rows"] if row["engine"] == engine),
            _REQUESTS[name] * _SHARES[engine],
        )

    def drifted(self, drift: float) -> "SimulatedDevice":
        saturation_per_s, requests = self.saturation_per_s / drift, self.requests / drift
        return replace(self, drift=drift, saturation_per_s=saturation_per_s, requests=requests)

    def play(self, stream: Stream, driver: MeasuredDriver, cost: LearnedCost, seed: int) -> Outcome:
        return simulate(stream, driver, self._seconds(cost, seed), keep_batches=True)

    def _seconds(self, cost: LearnedCost, seed: int) -> Seconds:
        """Seconds of a batch. The cost learns of the device's part."""
        random = np.random.default_rng(seed)
        host = noisy(_NO_TIME, Noise.none(), seed, self.overhead)

        def seconds(tokens: int, squares: int, longest: int, count: int, is_idle: bool) -> float:
            expected_s = float(self.table.seconds(tokens, squares, longest, count))
            device_s = self.drift * expected_s * float(random.choice(self.noise.ratios))
            cost.observe(tokens, squares, longest, count, device_s)
            return device_s + host(tokens, squares, longest, count, is_idle)

        return seconds


@dataclass(frozen=True, slots=True)
class RealDevice:
    """An engine of this machine. Requests come in real time, and batches run in its lanes."""

    engine: Engine
    table: CostTable
    settings: SchedulerSettings
    slo_s: float
    saturation_per_s: float  # of a worker's defaults
    requests: float

    @classmethod
    def measured(cls, bench: BenchHarness, kind: EngineKind, seconds: float) -> "RealDevice":
        """An engine, calibrated and saturated once. seconds: of a run at saturation."""
        plan = RunPlan()
        slo_s = plan.slo_of(bench, LENGTHS)
        system = replace(default(bench.limits(slo_s)), engine=kind)
        saturation = overloaded(bench, plan, system, LENGTHS, slo_s).answered_per_s(SINCE)
        requests = saturation * seconds * _SHARES[kind]
        return cls(bench.known(kind).engine, bench.table(kind), system.settings, slo_s, saturation, requests)

    def drifted(self, drift: float) -> "RealDevice":
        """An engine cannot be slowed down, so the table is too fast instead."""
        factors = np.array(self.table.factors) / drift
        return replace(self, table=replace(self.table, factors=tuple(map(tuple, factors.tolist()))))

    def play(self, stream: Stream, driver: MeasuredDriver, cost: LearnedCost, seed: int) -> Outcome:
        requests = Requests(stream, random_ids(stream.lengths, self.engine.info.vocab_size, seed))
        return drive(requests, driver, self.engine, cost, grace_s=2 * self.slo_s)
