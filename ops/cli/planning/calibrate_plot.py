"""Plot of predicted against measured batch times, as PNG. Needs matplotlib: pip install 'penstock[bench]'."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from penstock.cache import CostKey
from penstock.ops.cli.planning.calibrate_screen import law
from penstock.scheduler.costs.table import CostTable, Sample
from penstock.worker.batching.startup_costs import MeasuredCosts


def draw(key: CostKey, costs: MeasuredCosts, path: Path) -> None:
    """Write one PNG file. Raises OSError."""
    figure = Figure(figsize=(7, 7), layout="constrained")
    axes = figure.subplots()
    table, samples = costs.table, (*costs.table.samples, *costs.checks)
    seconds = [one.seconds for one in samples] + [one.predicted_by(table) for one in samples]
    ends = np.array([min(seconds) / 1.3, max(seconds) * 1.3]) * 1e3
    axes.fill_between(ends, ends / 1.1, ends * 1.1, color="black", alpha=0.08, linewidth=0, label="within 10 %")
    axes.plot(ends, ends, color="black", linewidth=0.8)
    _scatter(axes, table, table.samples, "fitted to", marker="o", color="tab:blue")
    _scatter(axes, table, costs.checks, "not fitted to", marker="D", color="tab:orange")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="measured, ms", ylabel="predicted, ms")
    axes.legend(loc="upper left")
    axes.set_title(f"{key.model}, {key.dtype}, on {key.device}\n{key.runtime}", fontsize=10)
    figure.text(0.5, -0.02, law(table), fontsize=7, ha="center")
    figure.savefig(path, dpi=120, bbox_inches="tight")


def _scatter(axes: Axes, table: CostTable, samples: Sequence[Sample], label: str, *, marker: str, color: str) -> None:
    if samples:
        p95 = float(np.quantile([abs(sample.error(table)) for sample in samples], 0.95))
        x = [sample.seconds * 1e3 for sample in samples]
        y = [sample.predicted_by(table) * 1e3 for sample in samples]
        axes.scatter(
            x, y, s=28, color=color, marker=marker, label=f"{len(x)} batches {label}: p95 {p95:.1%}", alpha=0.8
        )
