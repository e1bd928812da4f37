"""The plot of simulated fleets, as PNG. Needs matplotlib: pip install 'penstock[bench]'."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

Record = Mapping[str, Any]


def draw(record: Record, path: Path) -> None:
    """Latency and cost by load, latency by the size of the fleet, cost by the share of repeats; of what there is."""
    figure = Figure(figsize=(14, 9), layout="constrained")
    panels = (("load", _latency), ("load", _cost), ("fleet", _fleet), ("cache", _cache))
    for axes, (part, panel) in zip(figure.subplots(2, 2).ravel(), panels, strict=True):
        if part in record["parts"]:
            panel(axes, record["parts"][part])
        else:
            axes.set_axis_off()
    figure.suptitle(f"Simulated: {record['worker']}", fontsize=10)
    figure.savefig(path, dpi=110)


def _latency(axes: Axes, rows: list[Record]) -> None:
    loads = [row["load"] for row in rows]
    for name in ("p50_s", "p99_s"):
        axes.plot(loads, [row[name] * 1e3 for row in rows], marker="o", label=name[:3])
    axes.set(xlabel="load, of saturation", ylabel="ms", ylim=(0, None))
    refused = axes.twinx()
    refused.plot(loads, [100 * row["refused"] / row["requests"] for row in rows], color="grey", linestyle=":")
    refused.set(ylabel="refused, % (dotted)", ylim=(0, 100))
    axes.set_title("One worker: latency of what is answered", fontsize=10)
    axes.legend(loc="upper left", fontsize=8)


def _cost(axes: Axes, rows: list[Record]) -> None:
    loads = [row["load"] for row in rows]
    for name, label in (("paid_s_per_million", "paid"), ("busy_s_per_million", "busy")):
        axes.plot(loads, [row[name] for row in rows], marker="o", label=label)
    axes.set(xlabel="load, of saturation", ylabel="worker seconds a million answers", ylim=(0, None))
    axes.set_title("One worker: cost", fontsize=10)
    axes.legend(fontsize=8)


def _fleet(axes: Axes, rows: list[Record]) -> None:
    for keys in dict.fromkeys(row["keys"] for row in rows):
        chosen = [row for row in rows if row["keys"] == keys]
        places = [row["workers"] for row in chosen]
        axes.plot(places, [row["p99_s"] * 1e3 for row in chosen], marker="o", label=f"p99, keys {keys}")
        refused = [100 * row["refused"] / row["requests"] for row in chosen]
        axes.plot(places, refused, linestyle=":", marker=".", label=f"refused, %, keys {keys}")
    axes.set(xscale="log", xlabel="workers", ylabel="ms, and % refused", ylim=(0, None))
    axes.set_xticks(places, [str(place) for place in places])
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes.set_title("Fleets at one load a worker", fontsize=10)
    axes.legend(fontsize=8)


def _cache(axes: Axes, rows: list[Record]) -> None:
    for routing, label in (("key", "a key stays with its worker"), ("spread", "keys go anywhere")):
        chosen = [row for row in rows if row["routing"] == routing]
        shares = [100 * row["repeats"] for row in chosen]
        axes.plot(shares, [row["busy_s_per_million"] for row in chosen], marker="o", label=label)
    axes.set(xlabel="requests with a recurring key, %", ylabel="busy seconds a million answers", ylim=(0, None))
    axes.set_title("Response caches", fontsize=10)
    axes.legend(fontsize=8)
