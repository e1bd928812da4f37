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
was measured: `*/s, p50, ms` finds each such load.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.ops.bench.common import markdown
from penstock.ops.bench.common.machine import title
from penstock.ops.bench.common.measures import Suite, filled, matches
from penstock.ops.bench.common.runs import RESULTS, Run, current_runs, kept_runs, machines
from penstock.ops.bench.common.verdicts import Spread, spread, targets

NONE_KEPT = "No run has been kept."

Figures = Mapping[str, Spread]

_FIGURE = re.compile(r"\{([^{}|]+)(?:\|([^{}]*))?\}")  # name, and the text where it was not measured


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows of cells under headings."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]

    def shown(self, figures: Figures, has_gpu: bool) -> str:
        """Markdown; empty without any of the figures."""
        rows = [row for declared in self.rows for row in _repeated(declared, figures)]
        cells = [[_shown(cell, figures) for cell in row] for row in rows if _is_measured(row, figures)]
        return markdown.table(self.headings, cells) if cells else ""


@dataclass(frozen=True, slots=True)
class Targets:
    """Measured beside must and aim, with verdicts, of `targets.json`."""

    suite: str  # its key there
    on_cpu: str = ""  # the key for machines without a GPU, where they have targets of their own

    def shown(self, figures: Figures, has_gpu: bool) -> str:
        """Markdown; empty if none of the figures has a target."""
        rows = []
        for target in targets(self.suite if has_gpu or not self.on_cpu else self.on_cpu):
            if (measured := figures.get(target.measure)) is not None:
                sign = "≤" if target.lower_is_better else "≥"
                limits = [f"{sign} {limit:,g}" for limit in (target.must, target.aim)]
                rows.append([target.measure, str(measured), *limits, target.verdict(measured)])
        return markdown.table(["measure", "measured", "must", "aim", "verdict"], rows) if rows else ""


@dataclass(frozen=True, slots=True)
class Table:
    """One table of the documents."""

    suite: Suite
    parts: Sequence[str]  # those that have its figures
    sections: Sequence[Grid | Targets]
    newest: bool = False  # of the machine measured last alone
    apart: bool = False  # each part is of the commit that measured it last, whatever that measured of others

    def __call__(self, root: Path = RESULTS) -> str:
        """Markdown: of every machine's current runs, each with its caption; the machine measured last comes first."""
        suite = self.suite.name
        current = [runs for machine in machines(suite, root) for runs in self._current(suite, machine, root)]
        current.sort(key=lambda runs: str(runs[-1].record["started"]), reverse=True)
        found = [f"{text}\n\n{caption(runs, self.parts)}" for runs in current if (text := self.of_runs(runs))]
        return "\n\n".join(found[:1] if self.newest else found) or NONE_KEPT

    def _current(self, suite: str, machine: str, root: Path) -> list[list[Run]]:
        """Runs of one machine that are shown together."""
        if not self.apart:
            return [current_runs(suite, machine, root, self.parts)]
        measured: dict[tuple[Path, ...], list[str]] = {}  # runs -> parts that they measured last
        for part in self.parts:
            runs = [run for run in current_runs(suite, machine, root, [part]) if part in run.record["parts"]]
            measured.setdefault(tuple(run.path for run in runs), []).append(part)
        return [
            [_only(run, parts) for run in kept_runs(suite, machine, root) if run.path in paths]
            for paths, parts in measured.items()
            if paths
        ]

    def of_runs(self, runs: Sequence[Run]) -> str:
        """The same of some runs of one machine, without caption; empty if they have none of the figures."""
        found = [self.suite.measures(run.record) for run in runs]
        names = dict.fromkeys(name for measured in found for name in measured)
        every = {name: spread(measured.get(name) for measured in found) for name in names}
        figures = {name: one for name, one in every.items() if one is not None}
        has_gpu = "gpu" in runs[-1].record["machine"]
        return "\n\n".join(filter(None, (section.shown(figures, has_gpu) for section in self.sections)))


def _only(run: Run, parts: Sequence[str]) -> Run:
    return Run(run.path, {**run.record, "parts": {part: run.record["parts"][part] for part in parts}})


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


def run_table(root: Path = RESULTS) -> str:
    """Every kept run of every suite."""
    rows = []
    for suite in sorted({path.parent.parent.name for path in root.glob("*/*/*.json")}):
        for machine in machines(suite, root):
            for run in kept_runs(suite, machine, root):
                load = run.record["load"]
                around = " → ".join("?" if at is None else f"{at[0]:g}" for at in (load["before"], load["after"]))
                rows.append([suite, machine, run.record["started"][:16], run.commit, around, _versions(run)])
    return markdown.table(["suite", "machine", "started", "commit", "host load before → after", "versions"], rows)


def caption(runs: Sequence[Run], parts: Sequence[str]) -> str:
    """Machine, commit, dates, number of runs, and the known faults of these parts in these runs."""
    newest = runs[-1]
    dates = " to ".join(dict.fromkeys([runs[0].date, newest.date]))
    many = "1 run" if len(runs) == 1 else f"medians (min to max) of {len(runs)} runs"
    notes = dict.fromkeys(
        f"{part}: {note}" if len(parts) > 1 else note
        for run in runs
        for part in parts
        for note in run.record.get("notes", {}).get(part, [])
    )
    known = f" Known faults: {'; '.join(notes)}." if notes else ""
    return f"*{title(newest.record['machine'])}, commit {newest.commit}, {dates}, {many}.{known}*"


def _versions(run: Run) -> str:
    """Those of the libraries that decide how fast a run is."""
    machine = run.record["machine"]
    found = machine.get("versions", {})
    names = ("torch", "transformers", "sentence-transformers", "cupy-cuda12x", "cupy-cuda13x", "flash-attn")
    cuda = [f"CUDA {machine['cuda']}"] if machine.get("cuda") else []
    return ", ".join([*[f"{name} {found[name]}" for name in names if found.get(name)], *cuda]) or "not recorded"
