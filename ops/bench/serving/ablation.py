"""Ablation of the scheduler: each mechanism with, without and simpler, simulated on the kept cost tables.

    python -m penstock.ops.bench.serving.ablation --output scheduler/ABLATION.json [--only NAME ...]

The batches take what a kept result's table, noise and host time say, and the scheduler learns from them as a worker
does. A variant replaces one mechanism for the time of its runs.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.ops.bench.serving.ablation_variants import VARIANTS
from penstock.ops.bench.serving.arrivals import Floats, bursty, poisson
from penstock.ops.bench.serving.length_ranges import draw
from penstock.ops.bench.serving.measured_driver import MeasuredDriver
from penstock.ops.bench.serving.noise import Noise, Overhead, Seconds, noisy
from penstock.ops.bench.serving.outcome import Outcome
from penstock.ops.bench.serving.simulate import simulate
from penstock.ops.bench.serving.stream import Stream
from penstock.scheduler import CostTable, Job, LearnedCost, Refusal, Scheduler, SchedulerSettings
from penstock.scheduler.types import Cause

RESULTS = Path(__file__).parent.parent / "results"
DEVICES = {"CPU": "serving-amd-epyc-2-cores.json", "H200": "serving-nvidia-h200.json"}
_LENGTHS = "2-100"
_MAX_WAIT_S = 0.002
_REQUESTS = {"CPU": 4_000, "H200": 60_000}  # of one run at saturation; more or fewer by load
_SHARES = (0.5, 1.0, 2.0)  # of the SLO, where deadlines are mixed
_DRIFT = 1.5  # times as slow as the table, from the start
_SINCE = 0.2  # of a run: what comes before is on the way to a steady state

Row = dict[str, float]


@dataclass(frozen=True, slots=True)
class Device:
    """One engine of a kept result."""

    table: CostTable
    noise: Noise
    overhead: Overhead
    settings: SchedulerSettings
    saturation_per_s: float
    requests: int

    @classmethod
    def kept(cls, name: str, engine: str = "packed") -> "Device":
        """`engine`: "packed" or a padded one, whose saturation is that of its best system."""
        record: Mapping[str, Any] = json.loads((RESULTS / DEVICES[name]).read_text(encoding="utf-8"))
        kept, workload = record["engines"][engine], record["parts"]["saturation"][0]
        settings = SchedulerSettings(
            _MAX_WAIT_S,
            record["max_batch_sequences"],
            record["max_batch_tokens"],
            workload["slo_s"],
            num_lanes=record["num_lanes"],
        )
        saturation = max(row["saturation_per_s"] for row in workload["rows"] if row["engine"] == engine)
        return cls(
            CostTable.from_dict(kept["table"]),
            Noise(np.array(kept["noise"])),
            Overhead.from_dict(kept["overhead"]),
            settings,
            saturation,
            _REQUESTS[name],
        )

    @property
    def slo_s(self) -> float:
        if self.settings.slo_s is None:
            raise RuntimeError("An ablation without an SLO. This is a bug.")
        return self.settings.slo_s


class _MixedDeadlines(MeasuredDriver):
    """Gives the online jobs deadlines of three kinds in turn."""

    slo_s = 0.0

    def add(self, jobs: Sequence[Job], now: float, *, together: bool = False) -> list[Refusal]:
        mixed = [
            job if job.bulk else replace(job, deadline=job.arrival + self.slo_s * _SHARES[job.id % len(_SHARES)])
            for job in jobs
        ]
        return super().add(mixed, now, together=together)


def run(
    device: Device, load: float, seed: int, *, is_bursty: bool = False, drift: float = 1.0, bulk: bool = False,
    mixed: bool = False, settings: SchedulerSettings | None = None,
) -> tuple[Outcome, LearnedCost]:
    """One simulated run at `load` saturations."""
    rate = load * device.saturation_per_s / drift
    count = round(device.requests * load / drift)
    if is_bursty:
        periods = max(3, round(count / rate))
        count = round(rate * periods)
    arrive = bursty if is_bursty else poisson
    online = arrive(rate, count, seed)
    num_bulk = device.requests if bulk else 0
    stream = Stream.beside_bulk(online, draw(_LENGTHS, count + num_bulk, seed + 1))
    cost = LearnedCost(device.table)
    driver = (_MixedDeadlines if mixed else MeasuredDriver)(
        Scheduler(settings or device.settings, cost), device.settings.num_lanes
    )
    if isinstance(driver, _MixedDeadlines):
        driver.slo_s = device.slo_s
    outcome = simulate(stream, driver, _observed(device, cost, drift, seed), keep_batches=True)
    return outcome, cost


def _observed(device: Device, cost: LearnedCost, drift: float, seed: int) -> Seconds:
    """Seconds of a batch, of which the device's part is told to the cost."""
    random = np.random.default_rng(seed)
    host = noisy(_Nothing(), Noise.none(), seed, device.overhead)

    def seconds(tokens: int, squares: int, longest: int, count: int, is_idle: bool) -> float:
        expected_s = float(device.table.seconds(tokens, squares, longest, count))
        device_s = drift * expected_s * float(random.choice(device.noise.ratios))
        cost.observe(tokens, squares, longest, count, device_s)
        return max(0.1 * device_s, device_s + host(tokens, squares, longest, count, is_idle))

    return seconds


class _Nothing:
    """A device that takes no time, so that only the host's part is left."""

    padded = False

    def seconds(self, tokens: Any, squares: Any, longest: Any, count: Any) -> Any:
        return 0.0

    def lower_bound(self, tokens: float, squares: float, num_batches: int) -> float:
        return 0.0


def promises(outcome: Outcome, slos_s: Floats, since: float) -> tuple[float, float]:
    """Goodput a second after the settling time, and the share of the admitted requests not answered in time."""
    arrival = outcome.arrival[outcome.num_bulk :]
    in_time = outcome.latency_s <= slos_s
    rejected = sum(outcome.refused.get(cause, 0) for cause in (Cause.OVERLOADED, Cause.ARRIVED_LATE))
    begin = since * outcome.span_s
    goodput = float((in_time & (arrival >= begin)).sum()) / (outcome.span_s - begin)
    admitted = len(arrival) - rejected
    return goodput, 1 - float(in_time.sum()) / admitted if admitted else 0.0


def measure(device: Device, seed: int) -> Row:
    """Every figure of one device with one seed."""
    row: Row = {}
    slo_s = device.slo_s
    scenarios: dict[str, dict[str, Any]] = {
        "0.9": {"load": 0.9},
        "2.0": {"load": 2.0},
        "bursts": {"load": 0.7, "is_bursty": True},
        "mixed": {"load": 1.5, "mixed": True},
        "drift": {"load": 1.5, "drift": _DRIFT},
    }
    for name, chosen in scenarios.items():
        outcome, cost = run(device, seed=seed, **chosen)
        shares = np.array(_SHARES)[np.arange(len(outcome.latency_s)) % len(_SHARES)] if name == "mixed" else 1.0
        goodput, broken = promises(outcome, np.full(len(outcome.latency_s), slo_s) * shares, 0.0 if name == "bursts" else _SINCE)
        row[f"goodput {name}"], row[f"broken {name}"] = goodput, broken
        row[f"us {name}"] = outcome.scheduler_us()
    row["p95 error drift"] = cost.errors()[1]
    alone, _ = run(device, 0.5, seed)
    beside, _ = run(device, 0.5, seed, bulk=True)
    row["p99 ms"] = alone.percentile_s(99) * 1e3
    row["p99 ms more"] = (beside.percentile_s(99) - alone.percentile_s(99)) * 1e3
    row["bulk"] = beside.bulk_per_s()
    row["lost beside bulk"] = beside.num_refused / len(beside.latency_s)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", nargs="*", default=list(VARIANTS))
    parser.add_argument("--devices", nargs="*", default=list(DEVICES))
    parser.add_argument("--seeds", type=int, default=2)
    chosen = parser.parse_args()
    found: dict[str, dict[str, Row]] = {}
    for name in chosen.only:
        for device_name in chosen.devices:
            device = Device.kept(device_name)
            began = time.monotonic()
            with VARIANTS[name]():
                rows = [measure(device, seed) for seed in range(chosen.seeds)]
            mean = {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}
            found.setdefault(name, {})[device_name] = mean
            text = ", ".join(f"{key} {value:.4g}" for key, value in mean.items())
            print(f"{name} [{device_name}] {time.monotonic() - began:.0f} s: {text}", flush=True)
    if chosen.output:
        chosen.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
