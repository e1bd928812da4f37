"""The figures of the kept runs of cells: by name, as targets.json has them, and as tables."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.comparison import Grid
from penstock.ops.bench.common.kept_tables import Measures, Record, of_each_machine, target_table
from penstock.ops.bench.common.markdown import cell, table
from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.common.verdicts import Spread

SUITE = "cellular"
PARTS = {"lstm": "LSTM", "seq2seq": "Seq2Seq", "tree": "TreeLSTM"}
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
_TASKS = ("rows", "quantum", "device_us", "interval_us", "device_busy", "fill")

Part = Mapping[str, Any]
Load = Mapping[str, Any]


def figures() -> str:
    """Table `cellular`: peaks, and latencies at one rate, of the newest commit on each machine."""
    return of_each_machine(SUITE, list(PARTS), _figures)


def against_targets() -> str:
    """Table `cellular-targets`."""
    return of_each_machine(SUITE, list(PARTS), targets_of)


def targets_of(runs: Sequence[Run]) -> str:
    """The runs' figures beside the targets of their machine."""
    return target_table(SUITE if "gpu" in runs[-1].record["machine"] else f"{SUITE}-cpu", runs, measures)


def load_grids(name: str, part: Part) -> Iterator[Grid]:
    """All loads of a part, for a terminal."""
    without_device = [{**part["host"], "contestant": "no device, cellular"}] if "host" in part else []
    for kind in ("peaks", "at_half", "sweep"):
        loads = [*part[kind], *(without_device if kind == "peaks" else ())]
        rows = [[f"{load['contestant']} ({_settings(load)})", *_load_figures(load)] for load in loads]
        yield Grid(f"{PARTS[name]}: {kind}", ("contestant", "offered/s", "ended/s", *_TIMES, *_TASKS), rows)


def measures(record: Record) -> Measures:
    """Of the parts that a run has."""
    return dict(found for name in PARTS if name in record["parts"] for found in _measures(name, record["parts"][name]))


def _measures(name: str, part: Part) -> Iterator[tuple[str, float]]:
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


def _figures(runs: Sequence[Run]) -> str:
    found = {
        name: [part for run in runs if (part := run.record["parts"].get(name)) and part["peaks"]] for name in PARTS
    }
    return "\n\n".join(_part(PARTS[name], parts) for name, parts in found.items() if parts)


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


def _load_figures(load: Load) -> list[str | float]:
    """Of a closed loop, which has no latencies, or of an open one."""
    if "offered_per_s" not in load:
        return ["", load["requests_per_s"], *[""] * len(_TIMES), *(load[name] for name in _TASKS)]
    times = [load[kind][share] for kind, share in _TIMES.values()]
    return [load["offered_per_s"], load["throughput_per_s"], *times, *(load[name] for name in _TASKS)]


def _spread(values: Sequence[float]) -> str:
    return str(Spread(tuple(values))) if values else ""


def _settings(load: Load) -> str:
    return ", ".join(f"{name} {value}" for name, value in load["settings"].items())
