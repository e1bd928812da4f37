"""Results on a terminal: comparisons, and the tables beside them."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from penstock.ops.bench.common.comparison import Comparison, Grid


def show_comparisons(console: Console, comparisons: Sequence[Comparison]) -> None:
    """work | ours | baseline | ratio | floor | floor share"""
    table = Table(box=box.HORIZONTALS, show_lines=True)
    for column in ("work", "ours", "baseline", "ratio", "floor", "floor share"):
        table.add_column(column, overflow="fold")
    for row in comparisons:
        ratio, share = ("" if value is None else f"{value:.2f}" for value in (row.ratio, row.floor_share))
        table.add_row(row.work, row.ours, row.baseline, ratio, row.floor, share)
    console.print(table)


def show_grid(console: Console, grid: Grid) -> None:
    """One table of figures."""
    table = Table(title=grid.title, title_justify="left", box=box.SIMPLE)
    for index, column in enumerate(grid.columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in grid.rows:
        table.add_row(*[cell if isinstance(cell, str) else _number(cell) for cell in row])
    console.print(table)


def _number(value: float) -> str:
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 10 else f"{value:.1f}"
