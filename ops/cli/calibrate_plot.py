"""Plot of predicted against measured batch times, as PNG. Needs matplotlib: pip install 'penstock[bench]'."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from penstock.cache import CostKey
from penstock.ops.cli.calibrate_screen import law
from penstock.scheduler.costs.table import Residual
from penstock.worker.batching.startup_costs import MeasuredCosts


def draw(key: CostKey, costs: MeasuredCosts, path: Path) -> None:
    """Write one PNG file. Raises OSError."""
    figure = Figure(figsize=(7, 7), layout="constrained")
    axes = figure.subplots()
    fitted, checks = costs.table.residuals(), costs.check_residuals()
    seconds = [r.sample.seconds for r in fitted + checks] + [r.predicted_s for r in fitted + checks]
    ends = np.array([min(seconds) / 1.3, max(seconds) * 1.3]) * 1e3
    axes.fill_between(ends, ends / 1.1, ends * 1.1, color="black", alpha=0.08, linewidth=0, label="within 10 %")
    axes.plot(ends, ends, color="black", linewidth=0.8)
    _scatter(axes, fitted, "fitted to", marker="o", color="tab:blue")
    _scatter(axes, checks, "not fitted to", marker="D", color="tab:orange")
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="measured, ms", ylabel="predicted, ms")
    axes.legend(loc="upper left")
    axes.set_title(f"{key.model}, {key.dtype}, on {key.device}\n{key.runtime}", fontsize=10)
    figure.text(0.5, -0.02, law(costs.table), fontsize=7, ha="center")
    figure.savefig(path, dpi=120, bbox_inches="tight")


def _scatter(axes: Axes, residuals: Sequence[Residual], label: str, *, marker: str, color: str) -> None:
    if residuals:
        p95 = float(np.quantile([abs(residual.error) for residual in residuals], 0.95))
        x = [residual.sample.seconds * 1e3 for residual in residuals]
        y = [residual.predicted_s * 1e3 for residual in residuals]
        axes.scatter(
            x, y, s=28, color=color, marker=marker, label=f"{len(x)} batches {label}: p95 {p95:.1%}", alpha=0.8
        )
