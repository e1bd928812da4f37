"""Ablation of the scheduler: each mechanism with, without and simpler, simulated on the kept cost tables.

    python -m penstock.ops.bench.serving.ablation.__main__ [--only NAME ...]

Batches take what a kept run's table, noise and host time say, and the scheduler learns from them as a worker does. The
figures are kept as a run of the suite `ablation`; `make figures` writes them into scheduler/ABLATION.md.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from penstock.ops.bench.common.machine import describe_machine
from penstock.ops.bench.common.runs import RESULTS, begin, keep
from penstock.ops.bench.serving.ablation.variants import VARIANTS
from penstock.ops.bench.serving.loads.arrivals import BURSTS, Floats, bursty, poisson
from penstock.ops.bench.serving.loads.length_ranges import draw
from penstock.ops.bench.serving.loads.measured_driver import MeasuredDriver
from penstock.ops.bench.serving.loads.outcome import Outcome
from penstock.ops.bench.serving.loads.stream import Stream
from penstock.ops.bench.serving.simulation.noise import Noise, Overhead, Seconds, noisy
from penstock.ops.bench.serving.simulation.simulate import simulate
from penstock.scheduler import CostTable, Job, LearnedCost, PackedCost, RejectedJob, Scheduler, SchedulerSettings
from penstock.scheduler.types import Cause

KEPT = {
    "CPU": "serving/amd-epyc-2-cores/20261122T000346Z-10b68f6.json",
    "H200": "serving/nvidia-h200/20261121T232251Z-6a52b27.json",
}
_LENGTHS = "2-100"
_MAX_WAIT_S = 0.002
_REQUESTS = {"CPU": 3_000, "H200": 60_000}  # of one run at saturation; fewer or more by its load
_SHARES = (0.5, 1.0, 2.0)  # of the SLO, where deadlines are mixed
_DRIFT = 1.5  # times as slow as the table, from the start
_SINCE = 0.2  # of a run: the time before is on the way to a steady state
_PERIODS = 3  # of bursts, at least
_NO_TIME = PackedCost(0.0, 0.0, 0.0, 0.0)

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Device:
    """One engine of a kept run."""

    table: CostTable
    noise: Noise
    overhead: Overhead
    settings: SchedulerSettings
    slo_s: float
    saturation_per_s: float  # of its best system
    requests: int

    @classmethod
    def kept(cls, name: str, engine: str = "packed") -> "Device":
        """`name`: one of KEPT. `engine`: packed or padded."""
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
            _REQUESTS[name],
        )


@dataclass(frozen=True, slots=True)
class Scenario:
    """One simulated run."""

    load: float  # saturations
    is_bursty: bool = False
    is_mixed: bool = False  # three kinds of deadlines in turn
    drift: float = 1.0
    has_bulk: bool = False

    def slos_s(self, slo_s: float, count: int) -> Floats:
        """The SLO of each online request."""
        shares = np.array(_SHARES)[np.arange(count) % len(_SHARES)] if self.is_mixed else np.ones(count)
        return np.asarray(slo_s * shares)


SCENARIOS = {
    "0.9": Scenario(0.9),
    "2.0": Scenario(2.0),
    "bursts": Scenario(0.7, is_bursty=True),
    "mixed": Scenario(1.5, is_mixed=True),
    "drift": Scenario(1.5, drift=_DRIFT),
}


class _Driver(MeasuredDriver):
    """Gives online jobs the deadlines of a scenario."""

    def __init__(self, scheduler: Scheduler, num_lanes: int, slos_s: Floats) -> None:
        super().__init__(scheduler, num_lanes)
        self._slos_s = slos_s

    def add(self, jobs: Sequence[Job], now: float, *, together: bool = False) -> list[RejectedJob]:
        count = len(self._slos_s)
        with_deadlines = [
            job if job.bulk else job._replace(deadline=job.arrival + float(self._slos_s[job.id % count]))
            for job in jobs
        ]
        return super().add(with_deadlines, now, together=together)


def run(device: Device, scenario: Scenario, seed: int) -> tuple[Outcome, LearnedCost]:
    """Simulate a scenario; returns the cost that learned from it too."""
    rate = scenario.load * device.saturation_per_s / scenario.drift
    count = round(device.requests * scenario.load / scenario.drift)
    if scenario.is_bursty:
        count = round(rate * BURSTS.period_s * max(_PERIODS, round(count / rate / BURSTS.period_s)))
    num_bulk = device.requests if scenario.has_bulk else 0
    online = (bursty if scenario.is_bursty else poisson)(rate, count, seed)
    stream = Stream.beside_bulk(online, draw(_LENGTHS, count + num_bulk, seed + 1))
    cost = LearnedCost(device.table)
    scheduler = Scheduler(device.settings, cost)
    slos_s = np.roll(scenario.slos_s(device.slo_s, count), num_bulk)
    driver = _Driver(scheduler, device.settings.num_lanes, slos_s)
    return simulate(stream, driver, _seconds(device, cost, scenario.drift, seed), keep_batches=True), cost


def _seconds(device: Device, cost: LearnedCost, drift: float, seed: int) -> Seconds:
    """Seconds of a batch. The cost learns of the device's part."""
    random = np.random.default_rng(seed)
    host = noisy(_NO_TIME, Noise.none(), seed, device.overhead)

    def seconds(tokens: int, squares: int, longest: int, count: int, is_idle: bool) -> float:
        expected_s = float(device.table.seconds(tokens, squares, longest, count))
        device_s = drift * expected_s * float(random.choice(device.noise.ratios))
        cost.observe(tokens, squares, longest, count, device_s)
        return device_s + host(tokens, squares, longest, count, is_idle)

    return seconds


def measure(name: str, seed: int) -> Figures:
    """Every figure of one device with one seed, of the packed engine and of the padded one."""
    device, figures = Device.kept(name), Figures()
    for scenario_name, scenario in SCENARIOS.items():
        outcome, cost = run(device, scenario, seed)
        figures |= {f"{key} {scenario_name}": value for key, value in _promises(outcome, scenario, device).items()}
        figures[f"us {scenario_name}"] = outcome.scheduler_us()
        figures[f"error {scenario_name}"] = cost.errors()[1]
    alone, beside = (run(device, Scenario(0.5, has_bulk=has_bulk), seed)[0] for has_bulk in (False, True))
    figures["p99 ms"] = alone.percentile_s(99) * 1e3
    figures["p99 ms more"] = beside.percentile_s(99) * 1e3 - figures["p99 ms"]
    figures["bulk"] = beside.bulk_per_s()
    padded = Device.kept(name, "padded")
    overload = Scenario(2.0)
    outcome, _ = run(replace(padded, requests=padded.requests // 2), overload, seed)
    figures |= {f"{key} padded": value for key, value in _promises(outcome, overload, padded).items()}
    figures["by dp padded"] = sum(ran.partition == "dp" for ran in outcome.batches) / len(outcome.batches)
    return figures


def _promises(outcome: Outcome, scenario: Scenario, device: Device) -> Figures:
    """Answers in time a second; the admitted requests not answered in time, and the rejected ones, as shares."""
    arrival = outcome.arrival[outcome.num_bulk :]
    in_time = outcome.latency_s <= scenario.slos_s(device.slo_s, len(arrival))
    rejected = sum(outcome.refused.get(cause, 0) for cause in (Cause.OVERLOADED, Cause.ARRIVED_LATE))
    begin_s = 0.0 if scenario.is_bursty else _SINCE * outcome.span_s
    goodput = float((in_time & (arrival >= begin_s)).sum()) / (outcome.span_s - begin_s)
    broken = 1 - float(in_time.sum()) / max(1, len(arrival) - rejected)
    return {"goodput": goodput, "broken": broken, "rejected": rejected / len(arrival)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS), help="variants")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--dry", action="store_true", help="print, and keep nothing")
    chosen = parser.parse_args()
    header = begin("ablation", describe_machine())
    parts: dict[str, dict[str, Figures]] = {}
    for variant in chosen.only:
        for name in KEPT:
            began = time.monotonic()
            with VARIANTS[variant]():
                found = [measure(name, seed) for seed in range(chosen.seeds)]
            parts.setdefault(variant, {})[name] = {key: float(np.mean([one[key] for one in found])) for key in found[0]}
            print(f"{variant}, {name}: {time.monotonic() - began:.0f} s", flush=True)
            if not chosen.dry and name == list(KEPT)[-1]:
                keep({**header, "parts": parts})
    if chosen.dry:
        print(json.dumps(parts, indent=1))


if __name__ == "__main__":
    main()
