"""The plots of a run, as PNG. Needs matplotlib: pip install 'penstock[bench]'."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from penstock.ops.bench.common.runs import current_runs, machines
from penstock.ops.bench.gpu.report.arithmetic import FLOOR, backlog_rates, contestants, geomean, over_floor, results_of

Results = Mapping[str, Any]  # part -> its result


def draw_newest() -> list[Path]:
    """The plots of each machine's newest run, in its folder of kept runs."""
    newest = [current_runs("gpu", machine)[-1] for machine in machines("gpu")]
    return [path for run in newest for path in draw(run.record, run.path.parent)]


def draw(record: Mapping[str, Any], folder: Path) -> list[Path]:
    """One file for each plot that the record has figures for."""
    written = []
    results = results_of(record["parts"])
    for name, plot in _PLOTS.items():
        if name not in results:
            continue
        figure = Figure(figsize=(9, 5), layout="constrained")
        plot(figure.subplots(), results)
        faults = record.get("notes", {}).get(name, [])
        title = f"{record['machine'].get('gpu', '')}, commit {record['commit'] or 'not given'}"
        figure.suptitle("\n".join([title, *faults]), fontsize=7)
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=120)
        written.append(path)
    return written


def _grid(axes: Axes, results: Results) -> None:
    part = results["grid"]
    points = part["points"]
    sizes = sorted({point["max_tokens"] for point in points})
    for name in contestants(points):
        if name != FLOOR:
            ratios = [geomean(over_floor([p for p in points if p["max_tokens"] == size], name)) for size in sizes]
            axes.plot(sizes, ratios, marker="o", label=name)
    axes.axhline(1, color="black", linewidth=0.8, label="GEMM floor")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="maximum length, tokens",
        ylabel="time / floor, geomean over batches 1, 8, 16",
    )
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes.set_title("BERT-base fp16, mean length 0.6 of the maximum")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _fill(axes: Axes, results: Results) -> None:
    part = results["fill"]
    points = part["points"]
    for name in contestants(points):
        have = [point for point in points if name in point["ms"]]
        style = {"color": "black", "linestyle": "--"} if name == FLOOR else {"marker": "o"}
        axes.plot([p["ratio"] for p in have], [p["ms"][name] for p in have], label=name, **style)  # type: ignore[arg-type]  # a style's values
    axes.set(xlabel="mean length / maximum", ylabel="ms", ylim=(0, None))
    axes.set_title(f"BERT-base fp16, batch {part['batch']}, maximum {part['max_tokens']}")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _ablation(axes: Axes, results: Results) -> None:
    part = results["ablation"]
    sizes = [point["max_tokens"] for point in part["points"]]
    width = 0.8 / len(part["steps"])
    for index, step in enumerate(part["steps"]):
        heights = [
            point["ms"]["plain"] / point["ms"][step] if {"plain", step} <= point["ms"].keys() else 0.0
            for point in part["points"]
        ]
        axes.bar([place + index * width for place in range(len(sizes))], heights, width, label=step)
    axes.set_xticks(
        [place + 0.4 - width / 2 for place in range(len(sizes))], [f"{part['batch']} x {size}" for size in sizes]
    )
    axes.set(ylabel="times as fast as the plain forward")
    axes.set_title("Gain of each step")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _backlog(axes: Axes, results: Results) -> None:
    rates = {workload: found for workload, found in backlog_rates(results).items() if FLOOR in found}
    names = list(dict.fromkeys(name for found in rates.values() for name in found if name != FLOOR))
    width = 0.8 / max(1, len(names))
    for index, name in enumerate(names):
        heights = [found.get(name, 0.0) / found[FLOOR] for found in rates.values()]
        axes.bar([place + index * width for place in range(len(heights))], heights, width, label=name)
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(rates))], list(rates))
    axes.set(ylabel="share of the GEMM floor's requests per second", ylim=(0, 1))
    axes.set_title("Backlogs, host work included")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _kernels(axes: Axes, results: Results) -> None:
    part = results["kernels"]
    for kernel in dict.fromkeys(row["kernel"] for row in part["rows"]):
        rows = [row for row in part["rows"] if row["kernel"] == kernel]
        axes.plot(
            [row["tokens"] for row in rows], [row["bytes"] / row["us"] / 1e3 for row in rows], marker="o", label=kernel
        )
    axes.axhline(part["copy_bytes_per_s"] / 1e9, color="black", linewidth=0.8, label="copy ceiling")
    axes.set(xscale="log", xlabel="tokens", ylabel="GB/s", ylim=(0, None))
    sizes = sorted({row["tokens"] for row in part["rows"]})
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
    axes.set_title(f"Kernels, hidden size {part['hidden']}")
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))


_PLOTS: dict[str, Callable[[Axes, Results], None]] = {
    "grid": _grid,
    "fill": _fill,
    "ablation": _ablation,
    "backlog": _backlog,
    "kernels": _kernels,
}
