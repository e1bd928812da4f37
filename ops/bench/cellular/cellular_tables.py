"""The figures of the kept runs of cells: by name, as targets.json has them, and as tables."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.kept_tables import Measures, Record
from penstock.ops.bench.common.markdown import cell, table
from penstock.ops.bench.common.measures import Suite, results
from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.common.tables import Figures, Table, Targets
from penstock.ops.bench.common.verdicts import Spread

PARTS = {"lstm": "LSTM", "tree": "TreeLSTM"}
OURS, PADDING, GRAPH = "cellular", "padding to buckets", "graph batching"
DEPTH, AGENDA, NN_LSTM = "depth-based", "agenda-based", "nn.LSTM, packed"
_HIGH_LOAD = 0.8  # of our peak
_TIMES = {  # column -> fields of a load with a rate
    "p50 ms": ("latency_ms", "p50"),
    "p90 ms": ("latency_ms", "p90"),
    "p99 ms": ("latency_ms", "p99"),
    "queueing p90 ms": ("queueing_ms", "p90"),
    "computation p90 ms": ("computation_ms", "p90"),
}
Part = Mapping[str, Any]
Load = Mapping[str, Any]


def _measures(record: Record) -> Measures:
    """Of the parts that a run has."""
    return dict(found for name in PARTS if (part := results(record).get(name)) for found in _ratios(name, part))


def _ratios(name: str, part: Part) -> Iterator[tuple[str, float]]:
    rival = PADDING if name != "tree" else DEPTH
    top, theirs, offline = _peak(part, OURS), _peak(part, rival), part.get("offline")
    if top is not None and theirs is not None:
        yield f"{name}, peak, times {rival}", top["requests_per_s"] / theirs["requests_per_s"]
    if top is not None and offline is not None:
        yield f"{name}, peak, share of {NN_LSTM}, sorted offline", top["requests_per_s"] / offline["requests_per_s"]
    ours, others = _quickest_at_half(part, OURS), _quickest_at_half(part, rival)
    if ours is not None and others is not None:
        share = ours["latency_ms"]["p90"] / others["latency_ms"]["p90"]
        yield f"{name}, p90 at half of saturation, share of {rival}", share
    for load in part["sweep"]:
        is_high = top is not None and abs(load["offered_per_s"] / top["requests_per_s"] - _HIGH_LOAD) < 1e-6
        if load["contestant"] == OURS and is_high and load.get("p99_queueing_quanta") is not None:
            yield f"{name}, p99 queueing at 80 % load, quanta", load["p99_queueing_quanta"]


def _figures(figures: Figures, runs: Sequence[Run]) -> str:
    tables = []
    for name, shown in PARTS.items():
        parts = [part for run in runs if (part := results(run.record).get(name, {})).get("peaks")]
        tables += [_part(shown, parts)] if parts else []
    return "\n\n".join(tables)


def _part(name: str, parts: Sequence[Part]) -> str:
    """A row for each contestant, at its best settings for each figure."""
    rows = []
    for contestant in dict.fromkeys(load["contestant"] for load in parts[-1]["peaks"]):
        tops = list(filter(None, (_peak(part, contestant) for part in parts)))
        halves = list(filter(None, (_quickest_at_half(part, contestant) for part in parts)))
        row = [contestant, _spread([top["requests_per_s"] for top in tops]), _settings(tops[-1])]
        times = [_spread([half[kind][share] for half in halves]) for kind, share in _TIMES.values()]
        rows.append([*row, *times, _settings(halves[-1]) if halves else ""])
    half = cell(float(parts[-1].get("half_per_s", math.nan)))
    return table([name, "peak, req/s", "at", *(f"{column}, at {half}/s" for column in _TIMES), "at"], rows)


def _peak(part: Part, contestant: str) -> Load | None:
    """Its load of the highest throughput."""
    loads = [load for load in part["peaks"] if load["contestant"] == contestant]
    return max(loads, key=lambda load: float(load["requests_per_s"]), default=None)


def _quickest_at_half(part: Part, contestant: str) -> Load | None:
    """Its load of the least p90 at half of saturation."""
    loads = [load for load in part["at_half"] if load["contestant"] == contestant]
    return min(loads, key=lambda load: float(load["latency_ms"]["p90"]), default=None)


def _spread(values: Sequence[float]) -> str:
    return str(Spread(tuple(values))) if values else ""


def _settings(load: Load) -> str:
    return ", ".join(f"{name} {value}" for name, value in load["settings"].items())


TABLES: Mapping[str, Callable[[], str]] = {
    "cellular": Table(Suite("cellular", [_measures]), list(PARTS), [_figures]),
    "cellular-targets": Table(Suite("cellular", [_measures]), list(PARTS), [Targets("cellular")]),
}
