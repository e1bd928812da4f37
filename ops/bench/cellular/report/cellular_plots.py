"""The plots of a run of cells, as PNG. Needs matplotlib: pip install 'penstock[bench]'."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from penstock.ops.bench.cellular.report.cellular_measures import PARTS, SUITE
from penstock.ops.bench.common.machine import title
from penstock.ops.bench.common.runs import Run, current_runs, machines


def draw_newest() -> list[Path]:
    """The plots of each machine's newest run without skipped loads, if it has any, in its folder of kept runs."""
    newest = [_newest(current_runs(SUITE, machine, parts=PARTS)) for machine in machines(SUITE)]  # a probe has no plots
    return [path for run in newest for path in draw(run.record, run.path.parent)]


def _newest(runs: Sequence[Run]) -> Run:
    whole = [run for run in runs if not any(part.get("skipped") for part in run.record["parts"].values())]
    return (whole or runs)[-1]


def draw(record: Mapping[str, Any], folder: Path) -> list[Path]:
    """One file for each part: latency over throughput, and what it is made of (the paper's Figures 7, 9, 13 and 14)."""
    written = []
    for name in PARTS:
        part = record["parts"].get(name)
        if not part or not part["sweep"]:
            continue
        figure = Figure(figsize=(12, 4.5), layout="constrained")
        left, right = figure.subplots(1, 2)
        _latency(left, part)
        _split(right, part)
        where = f"{title(record['machine'])}, commit {(record['commit'] or 'not given')[:7]}"
        figure.suptitle(f"{name}: {where}", fontsize=8)
        written.append(folder / f"{name}.png")
        figure.savefig(written[-1], dpi=120)
    return written


def _latency(axes: Axes, part: Mapping[str, Any]) -> None:
    for contestant in dict.fromkeys(load["contestant"] for load in part["sweep"]):
        loads = [load for load in part["sweep"] if load["contestant"] == contestant]
        rates = [load["throughput_per_s"] for load in loads]
        p50, p90, p99 = ([load["latency_ms"][share] for load in loads] for share in ("p50", "p90", "p99"))
        below = [max(0.0, high - low) for low, high in zip(p50, p90, strict=True)]
        above = [max(0.0, high - low) for low, high in zip(p90, p99, strict=True)]
        axes.errorbar(rates, p90, yerr=[below, above], marker="o", capsize=3, linewidth=1, label=contestant)
    axes.set(xlabel="requests a second", ylabel="latency, ms: p90, bars from p50 to p99", yscale="log", xlim=(0, None))
    axes.legend(fontsize=8)


def _split(axes: Axes, part: Mapping[str, Any]) -> None:
    """Queueing and computation at half of saturation, of the best settings of each contestant."""
    best: dict[str, Mapping[str, Any]] = {}
    for load in part["at_half"]:
        known = best.get(load["contestant"])
        if known is None or load["latency_ms"]["p90"] < known["latency_ms"]["p90"]:
            best[load["contestant"]] = load
    places = list(range(len(best)))
    for shift, share, alpha in ((-0.2, "p50", 0.6), (0.2, "p99", 1.0)):
        at = [place + shift for place in places]
        queueing, computation = (
            [load[kind][share] for load in best.values()] for kind in ("queueing_ms", "computation_ms")
        )
        axes.bar(at, queueing, 0.36, color="tab:red", alpha=alpha, label=f"queueing, {share}")
        axes.bar(at, computation, 0.36, bottom=queueing, color="tab:blue", alpha=alpha, label=f"computation, {share}")
    axes.set_xticks(places, list(best), fontsize=7)
    axes.set(ylabel="ms", title=f"at {part['half_per_s']:,.0f} requests a second")
    axes.legend(fontsize=7)
