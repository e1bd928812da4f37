"""The loads of the ablation, and the figures of one engine under them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from penstock.ops.bench.serving.ablation.devices import LENGTHS, Device
from penstock.ops.bench.serving.loads.arrivals import BURSTS, Floats, bursty, poisson
from penstock.ops.bench.serving.loads.length_ranges import draw
from penstock.ops.bench.serving.loads.measured_driver import MeasuredDriver
from penstock.ops.bench.serving.loads.outcome import Outcome
from penstock.ops.bench.serving.loads.stream import Stream
from penstock.scheduler import Job, LearnedCost, RejectedJob, Scheduler
from penstock.scheduler.types import Cause

_SHARES = (0.5, 1.0, 2.0)  # of the SLO, where deadlines are mixed
_DRIFT = 1.5  # times as slow as the table, from the start
_SINCE = 0.2  # of a run: the time before is on the way to a steady state
_PERIODS = 3  # of bursts, at least

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run."""

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
    """Play a scenario; returns the cost that learned from it too."""
    device = device.drifted(scenario.drift)
    rate = scenario.load * device.saturation_per_s
    count = round(device.requests * scenario.load)
    if scenario.is_bursty:
        count = round(rate * BURSTS.period_s * max(_PERIODS, round(count / rate / BURSTS.period_s)))
    num_bulk = round(device.requests) if scenario.has_bulk else 0
    online = (bursty if scenario.is_bursty else poisson)(rate, count, seed)
    stream = Stream.beside_bulk(online, draw(LENGTHS, count + num_bulk, seed + 1))
    cost = LearnedCost(device.table)
    slos_s = np.roll(scenario.slos_s(device.slo_s, count), num_bulk)
    driver = _Driver(Scheduler(device.settings, cost), device.settings.num_lanes, slos_s)
    return device.play(stream, driver, cost, seed), cost


def measure(packed: Device, padded: Device, seed: int) -> Figures:
    """Every figure with one seed, of an engine without padding and of one that pads."""
    figures = Figures()
    for name, scenario in SCENARIOS.items():
        outcome, cost = run(packed, scenario, seed)
        figures |= {f"{key} {name}": value for key, value in _promises(outcome, scenario, packed).items()}
        figures[f"us {name}"] = outcome.scheduler_us()
        figures[f"error {name}"] = cost.errors()[1]
    alone, beside = (run(packed, Scenario(0.5, has_bulk=has_bulk), seed)[0] for has_bulk in (False, True))
    figures["p99 ms"] = alone.percentile_s(99) * 1e3
    figures["p99 ms more"] = beside.percentile_s(99) * 1e3 - figures["p99 ms"]
    figures["bulk"] = beside.bulk_per_s()
    overload = Scenario(2.0)
    outcome, _ = run(padded, overload, seed)
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
