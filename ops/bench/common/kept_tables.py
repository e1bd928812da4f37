"""Tables over kept runs: one section for each machine, medians of its current runs, and a caption that names them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.machine import title
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import RESULTS, Run, current_runs, kept_runs, machines
from penstock.ops.bench.common.verdicts import Spread, spread, targets

Record = Mapping[str, Any]  # a whole run, as its file holds it
Measures = Mapping[str, float]  # name -> figure, of one run

NONE_KEPT = "No run has been kept."


def sections(suite: str, parts: Sequence[str], section: Callable[[Sequence[Run]], str], root: Path) -> list[str]:
    """`section` of every machine's current runs, each with its caption; the machine measured last comes first.

    `parts` are those that `section` takes figures of.
    """
    found = [current_runs(suite, machine, root, parts) for machine in machines(suite, root)]
    runs = [current for current in found if not current[-1].record["parts"].keys().isdisjoint(parts)]
    runs.sort(key=lambda current: str(current[-1].record["started"]), reverse=True)
    return [f"{text}\n\n{caption(current, parts)}" for current in runs if (text := section(current))]


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


def spreads(runs: Sequence[Run], measures: Callable[[Record], Measures]) -> dict[str, Spread]:
    """Every measure that some of the runs have."""
    found = [measures(run.record) for run in runs]
    names = dict.fromkeys(name for measured in found for name in measured)
    every = {name: spread(measured.get(name) for measured in found) for name in names}
    return {name: values for name, values in every.items() if values is not None}


def beside_targets(suite: str, figures: Mapping[str, Spread]) -> str:
    """Measured figures beside the targets, with a verdict where there are runs enough; empty if none has a target."""
    rows = []
    for target in targets(suite):
        sign = "≤" if target.lower_is_better else "≥"
        if (measured := figures.get(target.measure)) is not None:
            limits = [f"{sign} {limit:,g}" for limit in (target.must, target.aim)]
            shown = measured.shown(decimals=6 if "cosine" in target.measure else None)
            rows.append([target.measure, shown, *limits, target.verdict(measured)])
    return table(["measure", "measured", "must", "aim", "verdict"], rows) if rows else ""


def run_table(root: Path = RESULTS) -> str:
    """Every kept run of every suite."""
    rows = []
    for suite in sorted({path.parent.parent.name for path in root.glob("*/*/*.json")}):
        for machine in machines(suite, root):
            for run in kept_runs(suite, machine, root):
                load = run.record["load"]
                around = " → ".join("?" if at is None else f"{at[0]:g}" for at in (load["before"], load["after"]))
                rows.append([suite, machine, run.record["started"][:16], run.commit, around, versions(run)])
    return table(["suite", "machine", "started", "commit", "host load before → after", "versions"], rows)


def versions(run: Run) -> str:
    """Those of the libraries that decide how fast a run is."""
    machine = run.record["machine"]
    found = machine.get("versions", {})
    names = ("torch", "transformers", "sentence-transformers", "cupy-cuda12x", "cupy-cuda13x", "flash-attn")
    cuda = [f"CUDA {machine['cuda']}"] if machine.get("cuda") else []
    return ", ".join([*[f"{name} {found[name]}" for name in names if found.get(name)], *cuda]) or "not recorded"
