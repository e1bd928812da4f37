"""Tables of the kept runs of cells, and of a run that ends."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.ops.bench.cellular.report.cellular_measures import PARTS, SUITE, measures, peak, quickest_at_half
from penstock.ops.bench.common.comparison import Grid
from penstock.ops.bench.common.kept_tables import Record, of_each_machine, target_table
from penstock.ops.bench.common.markdown import cell, table
from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.common.verdicts import Spread, targets

_NAMES = {"lstm": "LSTM", "seq2seq": "Seq2Seq", "tree": "TreeLSTM"}
_LOAD_COLUMNS = ("p50 ms", "p90 ms", "p99 ms", "queueing p90 ms", "computation p90 ms")


def figures() -> str:
    """Table `cellular`: peaks, and latencies at one rate, of the newest commit on each machine."""
    return of_each_machine(SUITE, PARTS, _figures)


def against_targets() -> str:
    """Table `cellular-targets`."""
    return of_each_machine(SUITE, PARTS, lambda runs: target_table(target_set(runs[-1].record), runs, measures))


def target_set(record: Record) -> str:
    """Key of the targets of a run's machine in targets.json."""
    return SUITE if "gpu" in record["machine"] else f"{SUITE}-cpu"


def load_grids(name: str, part: Mapping[str, Any]) -> Iterator[Grid]:
    """All loads of a part, for a terminal."""
    columns = (
        "contestant",
        "req/s",
        "rows",
        "quantum",
        "device µs",
        "interval µs",
        "device busy",
        "fill",
        "CPU µs/req",
    )
    rows: list[list[str | float]] = [[label(load), *_peak_figures(load)] for load in part["peaks"]]
    if "host" in part:
        rows.append([f"{label(part['host'])}, no device", *_peak_figures(part["host"])])
    yield Grid(f"{_NAMES[name]}: peak", columns, rows)
    for kind, heading in {"at_half": "half of saturation", "sweep": "sweep"}.items():
        if part[kind]:
            shown = ("contestant", "offered/s", "ended/s", *_LOAD_COLUMNS, "queueing p99 ms", "rows", "device busy")
            rows = [
                [
                    *(label(load), load["offered_per_s"], load["throughput_per_s"], *_latency_figures(load)),
                    *(load["queueing_ms"]["p99"], load["rows"], load["device_busy"]),
                ]
                for load in part[kind]
            ]
            yield Grid(f"{_NAMES[name]}: {heading}", shown, rows)


def verdict_grid(record: Record) -> Grid:
    """The figures of one run beside the targets. One run has no verdict."""
    found = measures(record)
    rows: list[list[str | float]] = []
    for target in targets(target_set(record)):
        if (value := found.get(target.measure)) is not None:
            sign = "≤" if target.lower_is_better else "≥"
            is_reached = value <= target.must if target.lower_is_better else value >= target.must
            rows.append([target.measure, value, f"{sign} {target.must:g}", "reached" if is_reached else "not reached"])
    return Grid("Beside the targets (a verdict needs three runs)", ("measure", "this run", "must", ""), rows)


def label(load: Mapping[str, Any]) -> str:
    """Contestant and settings."""
    return f"{load['contestant']} ({', '.join(f'{name} {value}' for name, value in load['settings'].items())})"


def _figures(runs: Sequence[Run]) -> str:
    tables = []
    for name in PARTS:
        parts = [part for run in runs if (part := run.record["parts"].get(name)) and part["peaks"]]
        if parts:
            tables.append(_part(_NAMES[name], parts))
    return "\n\n".join(tables)


def _part(name: str, parts: Sequence[Mapping[str, Any]]) -> str:
    """A row for each contestant, at its best settings for each figure."""
    names = dict.fromkeys(load["contestant"] for load in parts[-1]["peaks"])
    rows = []
    for contestant in names:
        tops = list(filter(None, (peak(part, contestant) for part in parts)))
        halves = list(filter(None, (quickest_at_half(part, contestant) for part in parts)))
        row = [contestant, _spread([top["requests_per_s"] for top in tops]), _settings(tops[-1])]
        latencies = [[half["latency_ms"][share] for half in halves] for share in ("p50", "p90", "p99")]
        split = [[half[kind]["p90"] for half in halves] for kind in ("queueing_ms", "computation_ms")]
        rows.append([*row, *map(_spread, [*latencies, *split]), _settings(halves[-1]) if halves else ""])
    half = cell(float(parts[-1].get("half_per_s", math.nan)))
    columns = (f"{name}", "peak, req/s", "at", *(f"{column}, at {half}/s" for column in _LOAD_COLUMNS), "at")
    return table(columns, rows)


def _spread(values: Sequence[float]) -> str:
    return str(Spread(tuple(values))) if values else ""


def _settings(load: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in load["settings"].items())


def _peak_figures(load: Mapping[str, Any]) -> list[float]:
    tasks = ("rows", "quantum", "device_us", "interval_us", "device_busy", "fill")
    return [float(load[name]) for name in ("requests_per_s", *tasks, "process_cpu_us")]


def _latency_figures(load: Mapping[str, Any]) -> list[float]:
    latencies = [float(load["latency_ms"][share]) for share in ("p50", "p90", "p99")]
    return [*latencies, float(load["queueing_ms"]["p90"]), float(load["computation_ms"]["p90"])]
