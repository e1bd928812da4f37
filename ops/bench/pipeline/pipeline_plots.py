"""The plots of a run of the pipeline, as PNG. Needs matplotlib: pip install 'penstock[bench]'."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure

from penstock.ops.bench.common.runs import current_runs, machines
from penstock.ops.bench.pipeline.pipeline_measures import CLOSED, loads_of, measures, rate_of
from penstock.ops.bench.pipeline.pipeline_tables import SUITE

_SERIES = (
    ("engine alone, no Kafka", "engine alone, {}, req/s"),
    ("penstock through Kafka", "{}, req/s"),
    ("SentenceTransformer.encode, no Kafka", "SentenceTransformer.encode, {}, req/s"),
)


def draw_newest() -> list[Path]:
    """The plots of each machine's newest run, in its folder of kept runs."""
    newest = [current_runs(SUITE, machine)[-1] for machine in machines(SUITE)]
    return [path for run in newest for path in draw(run.record, run.path.parent)]


def draw(record: Mapping[str, Any], folder: Path) -> list[Path]:
    """One file for each plot that the record has figures for."""
    written = []
    for name, plot in {"throughput": _throughput, "latency": _latency, "kill": _kill}.items():
        figure = Figure(figsize=(9, 5), layout="constrained")
        if plot(figure.subplots(), record):
            machine = record["machine"]
            where = f"{machine.get('gpu', machine['cpu'])}, commit {(record['commit'] or 'not given')[:7]}"
            figure.suptitle(where, fontsize=7)
            written.append(folder / f"{name}.png")
            figure.savefig(written[-1], dpi=120)
    return written


def _throughput(axes: Axes, record: Mapping[str, Any]) -> bool:
    found = measures(record)
    names = [name for name in CLOSED if f"{name}, req/s" in found]
    width = 0.8 / len(_SERIES)
    for index, (label, measure) in enumerate(_SERIES):
        heights = [found.get(measure.format(name), 0.0) for name in names]
        places = [place + index * width for place in range(len(names))]
        bars = axes.bar(places, heights, width, label=label)
        axes.bar_label(bars, [f"{height:,.0f}" if height else "" for height in heights], fontsize=7, padding=2)
    axes.set_xticks([place + width for place in range(len(names))], names)
    axes.set(ylabel="requests a second", ylim=(0, None))
    axes.set_title("Saturated, from client to client")
    axes.legend(fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=len(_SERIES))
    return bool(names)


def _latency(axes: Axes, record: Mapping[str, Any]) -> bool:
    loads = loads_of(record["parts"].get("open", {}))
    names = sorted(loads, key=rate_of)
    for which in ("p50", "p99"):
        points = [(rate_of(name), loads[name][f"{which}_ms"]) for name in names]
        answered = [(rate, ms) for rate, ms in points if ms is not None]
        axes.plot([rate for rate, _ in answered], [ms for _, ms in answered], marker="o", label=which)
    axes.set(xscale="log", yscale="log", xlabel="offered requests a second, Poisson", ylabel="ms from the due time")
    axes.set_xticks([rate_of(name) for name in names], names, rotation=45)
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    _plain_log(axes.yaxis)
    axes.set_title("Latency through Kafka, 2-100 tokens, one sequence a call")
    axes.legend(fontsize=8)
    return bool(names)


def _plain_log(axis: Axis) -> None:
    """Figures in place of powers of ten."""
    axis.set_major_formatter("{x:,.4g}")
    axis.set_minor_formatter("{x:,.4g}")


def _kill(axes: Axes, record: Mapping[str, Any]) -> bool:
    kill = record["parts"].get("kill", {})
    bins = [found for found in kill.get("timeline", []) if found["p99_ms"] is not None]
    axes.step([found["at_s"] for found in bins], [found["p99_ms"] for found in bins], where="post", label="p99")
    if bins:
        axes.axvline(kill["killed_at_s"], color="black", linewidth=0.8, label="kill -9 of a member")
        axes.set_title(f"{kill['load']['rate_per_s']:,.0f} requests a second; {kill['lost']:,.0f} lost")
    axes.set(yscale="log", xlabel="s, when a request was due", ylabel="ms, of the requests due in half a second")
    _plain_log(axes.yaxis)
    axes.legend(fontsize=8)
    return bool(bins)
