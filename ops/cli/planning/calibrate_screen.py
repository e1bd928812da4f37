"""A cost table on one screen, with its key, its law and the prediction error at each timing; and as a plot."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from penstock.cache import CostKey
from penstock.scheduler import CostTable
from penstock.scheduler.costs.table import Sample
from penstock.worker.batching.startup_costs import MeasuredCosts

if TYPE_CHECKING:
    from matplotlib.axes import Axes  # of an extra

_GOOD, _USABLE = 0.1, 0.2  # largest relative errors of a good and of a usable prediction


def show_costs(key: CostKey, costs: MeasuredCosts, path: Path | None) -> None:
    """Print the table on stdout. `path`: its file, or None if it was not kept."""
    console = Console(highlight=False, markup=False)
    when = datetime.fromtimestamp(costs.measured_at).strftime("%Y-%m-%d %H:%M")
    kept = "not kept" if path is None else f"kept in {path}"
    console.print(Text(f"{key.model}, {key.dtype}", style="bold"), f"on {key.device}")
    console.print(f"{key.runtime}; revision {key.revision[:16]}", style="dim", soft_wrap=True)
    console.print(f"measured {when} in {costs.took_s:.1f} s; {kept}", style="dim", soft_wrap=True)
    console.print()
    console.print(law(costs.table), soft_wrap=True)
    console.print("Measured ms, and the error of the table's prediction:")
    console.print()
    console.print(_grid(costs.table))
    console.print()
    console.print(_verdict(costs))


def law(table: CostTable) -> str:
    """The law in readable units, with the range of the factors that multiply it."""
    base, what = table.base, "padded " if table.padded else ""
    work = f"{base.alpha_s * 1e3:.3g} ms + {base.beta_s * 1e6:.3g} µs a {what}token"
    work += f" + {base.gamma_s * 1e9:.3g} ns a {what}length squared"
    factors = [factor for row in table.factors for factor in row]
    return (
        f"A batch takes {work}, at least {base.floor_s * 1e3:.3g} ms; times {min(factors):.2f} to {max(factors):.2f}."
    )


def _grid(table: CostTable) -> Table:
    """A row for each batch size, a column for each longest sequence."""
    columns = sorted({sample.longest for sample in table.samples})
    cells = {(_row(sample, table.padded), sample.longest): _cell(sample, table) for sample in table.samples}
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column("longest", style="dim", no_wrap=True)
    for longest in columns:
        grid.add_column(f"{longest:,}", justify="right", header_style="bold", no_wrap=True)
    for row in dict.fromkeys(name for name, _ in sorted(cells)):
        grid.add_row(_label(row, table.padded), *(cells.get((row, longest), Text("")) for longest in columns))
    return grid


def _row(sample: Sample, padded: bool) -> tuple[int, int]:
    """Sort key of a row: single sequences first, then by size, full batches of equal lengths last."""
    if sample.count == 1:
        return 0, 0
    if sample.tokens == sample.count * sample.longest:
        return 2, 0
    return 1, sample.count if padded else sample.tokens


def _label(row: tuple[int, int], padded: bool) -> str:
    kind, size = row
    return ("1 sequence", f"{size:,} {'sequences' if padded else 'tokens'}", "full, equal")[kind]


def _cell(sample: Sample, table: CostTable) -> Text:
    error = sample.error(table)
    return Text(_ms(sample.seconds)).append(f" {error:>+4.0%}", style=_style(abs(error)))


def _ms(seconds: float) -> str:
    ms = seconds * 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}" if ms >= 1 else f"{ms:.3f}"


def _style(error: float) -> str:
    return "dim" if error <= _GOOD else "yellow" if error <= _USABLE else "bold red"


def _verdict(costs: MeasuredCosts) -> Text:
    p50, p95 = costs.errors()
    if not costs.checks:
        return Text("No time was left to check it on other batches.", style="yellow")
    text = Text(f"On {len(costs.checks)} other batches its error is ")
    return text.append(f"{p50:.1%} (p50), {p95:.1%} (p95)", style=_style(p95) if p95 > _GOOD else "green").append(".")


def draw(key: CostKey, costs: MeasuredCosts, path: Path) -> None:
    """Plot predicted against measured batch times, as PNG. Needs matplotlib. Raises OSError."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

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


def _scatter(axes: "Axes", table: CostTable, samples: Sequence[Sample], label: str, *, marker: str, color: str) -> None:
    if samples:
        p95 = float(np.quantile([abs(sample.error(table)) for sample in samples], 0.95))
        x = [sample.seconds * 1e3 for sample in samples]
        y = [sample.predicted_by(table) * 1e3 for sample in samples]
        axes.scatter(
            x, y, s=28, color=color, marker=marker, label=f"{len(x)} batches {label}: p95 {p95:.1%}", alpha=0.8
        )
