"""The writer of tables: a table is a declaration, and its figures are medians (min to max) of kept runs per machine.

    LOADS = Grid(
        ["offered, Poisson", "p50, ms", "p99, ms"],
        [["*", "{*/s, p50, ms|never answered}", "{*/s, p99, ms|never answered}"]],
    )
    FACTS = Grid(["", "measured"], each(["drain, s", "idle member, cores"], "*", "{*}"))

    TABLES = {
        "pipeline-latency": Table(PIPELINE, ["open"], [LOADS]),
        "pipeline-targets": Table(PIPELINE, ["open", "drain"], [Targets("pipeline")]),
    }
    TABLES["pipeline-latency"]()     # Markdown, a section with a caption for each machine

`PIPELINE` is a `Suite`: see `measures.py`. A row is one line. In a cell `{NAME}` stands for the figure of that name,
and `{NAME|text}` for the text where it was not measured; all other text stays. A cell without one of its figures is
empty, a row without any is left out, and so is a grid without rows. A row whose names have `*` is repeated for all that
was measured: `*/s, p50, ms` finds each such load. A table of a form that `Grid` has not is a function of the figures
and the runs, in place of a grid.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.ops.bench.common import markdown
from penstock.ops.bench.common.kept_tables import NONE_KEPT, beside_targets, sections, spreads
from penstock.ops.bench.common.measures import Suite, filled, matches
from penstock.ops.bench.common.runs import RESULTS, Run
from penstock.ops.bench.common.verdicts import Spread

Figures = Mapping[str, Spread]
Section = Callable[[Figures, Sequence[Run]], str]  # of one machine; empty: it has nothing to show

_FIGURE = re.compile(r"\{([^{}|]+)(?:\|([^{}]*))?\}")  # name, and the text where it was not measured


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of cells under headings."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __call__(self, figures: Figures, runs: Sequence[Run] = ()) -> str:
        rows = [row for declared in self.rows for row in _repeated(declared, figures)]
        cells = [[_shown(cell, figures) for cell in row] for row in rows if _is_measured(row, figures)]
        return markdown.table(self.headings, cells) if cells else ""


@dataclass(frozen=True, slots=True)
class Targets:
    """Measured beside must and aim, with verdicts, of `targets.json`."""

    suite: str  # its key there
    on_cpu: str = ""  # the key for machines without a GPU, where they have targets of their own

    def __call__(self, figures: Figures, runs: Sequence[Run]) -> str:
        has_gpu = "gpu" in runs[-1].record["machine"]
        return beside_targets(self.suite if has_gpu or not self.on_cpu else self.on_cpu, figures)


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the documents."""

    suite: Suite
    parts: Sequence[str]  # those that have its figures
    sections: Sequence[Section]
    newest: bool = False  # of the machine measured last alone

    def __call__(self, root: Path = RESULTS) -> str:
        """The Markdown text, of each machine."""
        found = sections(self.suite.name, self.parts, self.of_runs, root)
        return "\n\n".join(found[:1] if self.newest else found) or NONE_KEPT

    def of_runs(self, runs: Sequence[Run]) -> str:
        """The same of some runs of one machine, without caption; empty if they have none of the figures."""
        found = spreads(runs, self.suite.measures)
        figures = {name: replace(one, decimals=self.suite.decimals(name)) for name, one in found.items()}
        return "\n\n".join(filter(None, (section(figures, runs) for section in self.sections)))


def each(keys: Iterable[str], *cells: str) -> list[list[str]]:
    """A row for each key, which stands for `*` in all cells."""
    return [[cell.replace("*", key) for cell in cells] for key in keys]


def _repeated(row: Sequence[str], figures: Figures) -> Iterator[list[str]]:
    """The row itself, or one for each text that its `*` stand for."""
    names = [found[1] for cell in row for found in _FIGURE.finditer(cell) if "*" in found[1]]
    if not names:
        yield list(row)
        return
    for texts in dict.fromkeys(tuple(texts) for name in names for texts in matches(name, list(figures))):
        yield [_filled_cell(cell, texts) for cell in row]


def _filled_cell(cell: str, texts: Sequence[str]) -> str:
    """Each name of the cell, or else the cell's text, with the texts."""
    if _FIGURE.search(cell) is None:
        return filled(cell, texts)
    return _FIGURE.sub(lambda found: filled(found[0], texts), cell)


def _is_measured(row: Sequence[str], figures: Figures) -> bool:
    names = [found[1] for cell in row for found in _FIGURE.finditer(cell)]
    return any(name in figures for name in names)


def _shown(cell: str, figures: Figures) -> str:
    if any(found[1] not in figures and found[2] is None for found in _FIGURE.finditer(cell)):
        return ""
    return _FIGURE.sub(lambda found: str(figures.get(found[1], found[2])), cell)
