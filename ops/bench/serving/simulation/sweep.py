"""`penstock bench simulate`: how cost and p99 grow with load, with the fleet, with popular keys, caches and a loss."""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from penstock.ops.bench.common.console_tables import show_grid
from penstock.ops.bench.common.machine import describe_machine
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import begin, finite, keep
from penstock.ops.bench.serving.loads.length_ranges import draw
from penstock.ops.bench.serving.report.report_files import require_plots, write_beside
from penstock.ops.bench.serving.simulation.noise import Noise, Overhead
from penstock.ops.bench.serving.simulation.simulated_fleet import Fleet, Loss, Traffic, simulate_fleet
from penstock.ops.bench.serving.simulation.sweep_rows import figures, words
from penstock.ops.bench.serving.simulation.sweep_tables import NOTICED, grids
from penstock.scheduler import CostFunction, CostTable, PackedCost, SchedulerSettings

# BERT-base in float16 on an H200, rounded from a run under ops/bench/results/gpu/nvidia-h200: 2.5 million tokens a
# second, at least 0.6 ms a batch. Only the default of `penstock bench simulate`, which takes a result file instead.
_H200 = PackedCost(floor_s=0.6e-3, alpha_s=0.1e-3, beta_s=0.39e-6, gamma_s=4e-11)
_H200_CAPS = (1024, 16_384)  # sequences, tokens
_MAX_WAIT_S = 0.002
_LOADS = (0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0)
_REPEATS = (0.0, 0.25, 0.5, 0.75)
_SKEW: dict[str, Any] = {"repeat_share": 1.0, "num_keys": 100_000, "zipf": 0.9}
_CACHED: dict[str, Any] = {"num_keys": 20_000, "zipf": 0.7}
_ROUTINGS: tuple[Literal["key", "spread"], ...] = ("key", "spread")
_MIDDLE = 16  # workers at most, in parts that do not vary their number
_MOST_FOR_ONE = 200_000  # requests of a run with one worker

PARTS = ("load", "fleet", "cache", "loss")
LARGE = "large"  # a part that is run when it is asked for: it takes minutes

Row = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Options of the simulation."""

    parts: tuple[str, ...] = PARTS
    workers: tuple[int, ...] = (1, 4, 16, 64, 256)
    num_requests: int = 1_000_000  # in each run
    num_large: int = 10_000_000  # in that of part LARGE
    lengths: str = "2-100"
    slo_s: float = 0.05
    load: float = 0.8
    seed: int = 0


class UnusableResult(Exception):
    """A file that holds no measured costs, or a fleet that answers no request. The message says which."""


@dataclass(frozen=True, slots=True)
class _Worker:
    """One worker's machine, as a result file describes it."""

    what: str
    cost: CostFunction
    noise: Noise
    overhead: Overhead
    num_lanes: int
    caps: tuple[int, int]


def run_sweep(plan: SweepPlan, *, result: Path | None, output: Path | None) -> int:
    """Run the sweep and print its tables. `result`: of `penstock bench serve`; `output`: the folder of kept runs.

    Raises UnusableResult, PlotsUnavailable.
    """
    if output is not None:
        require_plots()
    console = Console(width=max(140, Console().width))
    worker = _Worker("a model of BERT-base on an H200", _H200, Noise.none(), Overhead.none(), 1, _H200_CAPS)
    if result is not None:
        worker = _measured(result)
    began, header = time.monotonic(), begin("simulation", describe_machine())
    sweep = _Sweep(plan, worker, lambda line: console.print(f"[{time.monotonic() - began:4.0f} s] {line}"))
    record = finite(
        {
            **header,
            "worker": worker.what,
            "plan": asdict(plan),
            "saturation_per_s": sweep.saturation,
            "parts": sweep.run(),
        }
    )
    for grid in grids(record):
        show_grid(console, grid)
    if output is not None:
        path = _keep(record, output)
        console.print(f"Written: {path}, and the tables and plots beside it")
    return 0


class _Sweep:
    """The runs of one plan."""

    def __init__(self, plan: SweepPlan, worker: _Worker, say: Say) -> None:
        self._plan = plan
        self._say = say
        self._num_processes = len(os.sched_getaffinity(0))
        settings = SchedulerSettings(_MAX_WAIT_S, *worker.caps, slo_s=plan.slo_s, num_lanes=worker.num_lanes)
        self._one = Fleet(1, settings, worker.cost, worker.noise, worker.overhead)
        self.saturation = self._saturation()
        if not self.saturation > 0:
            raise UnusableResult(
                f"Not one request is answered within {plan.slo_s * 1e3:g} ms: there is no load to simulate."
            )
        say(f"{worker.what}: one worker answers {self.saturation:,.0f} req/s when saturated")

    def run(self) -> dict[str, list[Row]]:
        """The rows of every part of the plan."""
        rows: dict[str, Callable[[], Iterator[Row]]] = {
            "load": self._loads,
            "fleet": self._fleets,
            "cache": self._caches,
            "loss": self._losses,
            LARGE: self._large,
        }
        return {part: list(rows[part]()) for part in self._plan.parts}

    @property
    def _several(self) -> int:
        """Workers where it is not their number that changes."""
        return max(2, max([workers for workers in self._plan.workers if workers <= _MIDDLE], default=0))

    def _loads(self) -> Iterator[Row]:
        count = min(self._plan.num_requests, _MOST_FOR_ONE)
        for load in _LOADS:
            yield self._row({"load": load}, self._one, self._traffic(1, load, count))

    def _fleets(self) -> Iterator[Row]:
        for workers in self._plan.workers:
            fleet, traffic = replace(self._one, num_workers=workers), self._traffic(workers)
            yield self._row({"workers": workers, "keys": "all different"}, fleet, traffic)
            yield self._row({"workers": workers, "keys": "Zipf"}, fleet, replace(traffic, **_SKEW))

    def _caches(self) -> Iterator[Row]:
        for repeats in _REPEATS:
            traffic = replace(self._traffic(self._several), repeat_share=repeats, **_CACHED)
            for routing in _ROUTINGS:
                fleet = replace(self._one, num_workers=self._several, has_cache=True, routing=routing)
                yield self._row({"repeats": repeats, "routing": routing}, fleet, traffic)

    def _large(self) -> Iterator[Row]:
        workers = max(self._plan.workers)
        traffic = self._traffic(workers, count=self._plan.num_large)
        yield self._row({"workers": workers}, replace(self._one, num_workers=workers), traffic)

    def _losses(self) -> Iterator[Row]:
        workers = self._several
        for load in (0.5, self._plan.load):
            traffic = self._traffic(workers, load)
            span_s = traffic.num_requests / traffic.rate_per_s
            whole = replace(self._one, num_workers=workers)
            loss = Loss(0, 0.4 * span_s, NOTICED * span_s)
            for name, fleet in (("none", whole), ("one worker", replace(whole, loss=loss))):
                yield self._row({"load": load, "workers": workers, "lost": name, "after_s": span_s}, fleet, traffic)

    def _saturation(self) -> float:
        """Answers a second of one worker at twice the load that its cost function predicts as saturation."""
        settings, cost = self._one.settings, self._one.cost
        traffic = Traffic(1.0, 20_000, self._plan.lengths)
        lengths = draw(traffic.lengths, settings.max_batch_sequences, 0)
        lengths = lengths[: max(1, int(np.searchsorted(np.cumsum(lengths), settings.max_batch_tokens)))]
        batch_s = float(cost.seconds(int(lengths.sum()), int((lengths**2).sum()), int(lengths.max()), len(lengths)))
        rate = 2 * settings.num_lanes * len(lengths) / batch_s
        outcome = simulate_fleet(replace(traffic, rate_per_s=rate), self._one)
        # The lane driver tries a late request now and then: its answer alone does not count as service.
        if not (outcome.finish - outcome.arrival <= self._plan.slo_s).any():
            return 0.0
        return float((outcome.finish <= outcome.span_s).sum()) / outcome.span_s

    def _traffic(self, workers: int, load: float | None = None, count: int | None = None) -> Traffic:
        plan = self._plan
        rate = (plan.load if load is None else load) * workers * self.saturation
        return Traffic(rate, count or plan.num_requests, plan.lengths, seed=plan.seed)

    def _row(self, what: Row, fleet: Fleet, traffic: Traffic) -> Row:
        began = time.monotonic()
        outcome = simulate_fleet(traffic, fleet, num_processes=self._num_processes)
        seconds = time.monotonic() - began
        self._say(f"  {words(what)}: {traffic.num_requests:,} requests in {seconds:.1f} s")
        return {**what, "rate_per_s": traffic.rate_per_s, "simulated_in_s": seconds, **figures(outcome)}


def _measured(result: Path) -> _Worker:
    """Raises UnusableResult."""
    try:
        return _worker_of(json.loads(result.read_text(encoding="utf-8")))
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # CorruptTable is a ValueError, as is no JSON
        raise UnusableResult(f"{result} is no result of penstock bench serve: {error!r:.200}") from error


def _worker_of(record: Mapping[str, Any]) -> _Worker:
    engine = record["engines"]["packed"]
    machine = record["machine"]
    where = machine.get("gpu") or f"{machine['cpu']}, {len(machine['cores_used'])} cores"
    return _Worker(
        f"{record['model']}, {record['dtype']}, {where}",
        CostTable.from_dict(engine["table"]),
        Noise(np.array(engine["noise"])),
        Overhead.from_dict(engine["overhead"]),
        record["num_lanes"],
        (record["max_batch_sequences"], record["max_batch_tokens"]),
    )


def _keep(record: Mapping[str, Any], root: Path) -> Path:
    from penstock.ops.bench.serving.simulation.sweep_plot import draw as draw_plot  # matplotlib takes a second

    head = f"# Simulated fleets: {record['worker']}\n\n`{record['command']}`\n\n"
    sections = [f"## {grid.title}\n\n{table(grid.columns, grid.rows)}" for grid in grids(record)]
    path = keep(record, root)
    draw_plot(record, write_beside(path, head + "\n\n".join(sections) + "\n"))
    return path
