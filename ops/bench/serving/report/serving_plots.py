"""The plots of a result file, as PNG. Needs matplotlib: pip install 'penstock[bench]'."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Record = Mapping[str, Any]

_STYLES = {"packed": "-", "padded": "--", "padding": ":"}
_COLOURS = {"penstock default": "black", "TEI's rule": "tab:red"}


def draw(record: Record, path: Path) -> list[Path]:
    """One picture of all that the record has figures for; none if there is nothing to draw."""
    panels = _panels(record["parts"])
    if not panels:
        return []
    columns = 2
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(15, 5.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for place, (panel, part) in zip(axes, panels, strict=False):
        panel(place, part)
    for place in axes[len(panels) :]:
        place.set_axis_off()
    machine = record["machine"]
    where = machine.get("gpu") or f"{machine['cpu']}, {len(machine['cores_used'])} cores"
    figure.suptitle(f"{record['model']}, {record['dtype']}, {where}, commit {record['commit']}", fontsize=9)
    figure.savefig(path, dpi=110)
    return [path]


def _panels(parts: Record) -> list[tuple[Any, Record]]:
    panels: list[tuple[Any, Record]] = []
    for workload in parts.get("saturation", ()):
        panels += [(_throughput, workload), (_latency, workload)]
    if "goodput" in parts:
        panels.append((_goodput, parts["goodput"]))
    if "bursts" in parts:
        panels.append((_bursts, parts["bursts"]))
    return panels


def _throughput(axes: Axes, workload: Record) -> None:
    """Lines are simulated, marks are real runs."""
    colours = _colours([row["system"] for row in workload["rows"]])
    for row in workload["rows"]:
        name = row["system"]
        offered, answered = zip(*row["curve"], strict=True)
        axes.plot(offered, answered, linestyle=_STYLES[row["engine"]], color=colours[name], label=name)
        real = [row["at_critical"], row["overload"]]
        limit = max(offered)
        marks = [(point["offered_per_s"], point["answered_per_s"]) for point in real]
        marks = [mark for mark in marks if mark[0] <= 1.05 * limit]
        if marks:
            axes.plot(*zip(*marks, strict=True), marker="o", linestyle="", color=colours[name])
    axes.set(xlabel="arrivals a second", ylabel="answers a second", ylim=(0, None), xlim=(0, None))
    axes.set_title(f"Throughput, {workload['lengths']} tokens (lines: simulated, marks: real)", fontsize=10)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=4)


def _latency(axes: Axes, workload: Record) -> None:
    colours = _colours([row["system"] for row in workload["rows"]])
    shares = [percent / 100 for percent in range(101)]
    for row in workload["rows"]:
        point = row["at_critical"]
        pairs = [(value * 1e3, share) for value, share in zip(point["cdf_s"], shares, strict=True) if value is not None]
        label = f"{row['system']}, {point['offered_per_s']:,.0f}/s"
        if pairs:
            axes.plot(
                *zip(*pairs, strict=True),
                linestyle=_STYLES[row["engine"]],
                color=colours[row["system"]],
                label=label,
            )
    axes.axvline(workload["slo_s"] * 1e3, color="grey", linewidth=0.8)
    axes.set(xscale="log", xlabel="latency, ms", ylabel="share of the requests", ylim=(0, 1))
    axes.set_title(f"Latency at the critical points, {workload['lengths']} tokens (grey: the SLO)", fontsize=10)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=4)


def _goodput(axes: Axes, part: Record) -> None:
    saturation = part["saturation_per_s"]
    for index, slo_s in enumerate(sorted({row["slo_s"] for row in part["rows"]})):
        for name, style in (("penstock default", "-"), ("TEI's rule", "--")):
            rows = [row for row in part["rows"] if row["slo_s"] == slo_s and row["system"] == name]
            axes.plot(
                [row["load"] for row in rows],
                [row["goodput_per_s"] / saturation for row in rows],
                linestyle=style,
                marker="o",
                color=f"C{index}",
                label=f"{name}, SLO {slo_s * 1e3:.0f} ms",
            )
    axes.set(xlabel="load, of saturation", ylabel="answered in time, of saturation", ylim=(0, None))
    axes.set_title(f"Goodput, {part['lengths']} tokens", fontsize=10)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=4)


def _bursts(axes: Axes, part: Record) -> None:
    loads = sorted({row["load"] for row in part["rows"]})
    for index, name in enumerate(("penstock default", "TEI's rule")):
        heights = [
            row["goodput_per_s"] / row["offered_per_s"]
            for load in loads
            for row in part["rows"]
            if row["load"] == load and row["system"] == name
        ]
        places = [place + 0.4 * index for place in range(len(loads))]
        axes.bar(places, heights, 0.38, color=_COLOURS[name], label=name)
    axes.set_xticks([place + 0.2 for place in range(len(loads))], [f"{load:g} of saturation" for load in loads])
    axes.set(ylabel="answered in time, of what came", ylim=(0, 1.05))
    axes.set_title(f"Bursts of five times the mean rate, {part['lengths']} tokens", fontsize=10)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), handlelength=4)


def _colours(names: list[str]) -> dict[str, Any]:
    others = [name for name in names if name not in _COLOURS]
    shades = colormaps["tab20"].colors  # type: ignore[attr-defined]  # a list of twenty, which its type does not say
    return {**{name: shades[index % 20] for index, name in enumerate(others)}, **_COLOURS}
