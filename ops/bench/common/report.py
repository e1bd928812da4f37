"""The results on a terminal: one table of claims, and the tables beside it."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from penstock.ops.bench.common.claims import Claim, Criterion, Grid

_STYLES = {"aim": "green", "must": "yellow", "missed": "red"}
_WORDS = {"aim": "yes, and the aim", "must": "yes", "missed": "no"}


def show_claims(console: Console, claims: Sequence[Claim]) -> None:
    """work | ours | baseline | ratio | floor | floor share | judged by | must | aim | met?"""
    table = Table(box=box.HORIZONTALS, show_lines=True)
    for column in ("work", "ours", "baseline", "ratio", "floor", "floor share", "judged by", "must", "aim", "met?"):
        table.add_column(column, overflow="fold")
    for claim in claims:
        table.add_row(
            claim.work,
            claim.ours,
            claim.baseline,
            "" if claim.ratio is None else f"{claim.ratio:.2f}",
            claim.floor,
            "" if claim.floor_share is None else f"{claim.floor_share:.2f}",
            *_verdict(claim.criterion),
        )
    console.print(table)


def show_grid(console: Console, grid: Grid) -> None:
    """One table of figures."""
    table = Table(title=grid.title, title_justify="left", box=box.SIMPLE)
    for index, column in enumerate(grid.columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in grid.rows:
        table.add_row(*[cell if isinstance(cell, str) else _number(cell) for cell in row])
    console.print(table)


def _verdict(criterion: Criterion | None) -> tuple[str, ...]:
    if criterion is None:
        return ("",) * 4
    sign = "≥" if criterion.higher_is_better else "≤"
    verdict = criterion.verdict
    must, aim = (f"{sign} {threshold:,.6g}" for threshold in (criterion.must, criterion.aim))
    judged = f"{criterion.what}: {criterion.value:,.6g}"
    return judged, must, aim, f"[{_STYLES[verdict]}]{_WORDS[verdict]}[/]"


def _number(value: float) -> str:
    return (
        f"{value:,.0f}"
        if abs(value) >= 1000 or value == int(value)
        else f"{value:.3g}"
        if value < 10
        else f"{value:.1f}"
    )
