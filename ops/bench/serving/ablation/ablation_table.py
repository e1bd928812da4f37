"""Tables of the kept runs of the ablation, for scheduler/ABLATION.md."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import RESULTS, Run, kept_runs, machines

AS_IS = "as is"

Figures = Mapping[str, float]

_GOODPUTS = ("0.9", "2.0", "bursts", "mixed", "drift", "padded")
_COLUMNS = (*_GOODPUTS, "broken", "rejected at 0.9", "p95 error", "p99 beside bulk", "bulk")


def ablations(root: Path = RESULTS) -> str:
    """Table `ablation` of scheduler/ABLATION.md: every kept run of every machine, the latest first."""
    runs = [run for machine in machines("ablation", root) for run in kept_runs("ablation", machine, root)]
    return "\n\n".join(_section(run) for run in sorted(runs, key=lambda run: str(run.record["started"]), reverse=True))


def _section(run: Run) -> str:
    record = run.record
    load = ", ".join(str(value) for value in record["load"]["before"])
    title = f"### Commit {run.commit}, {run.date}\n\n`{record['command']}`; host load before: {load}"
    parts: Mapping[str, Mapping[str, Figures]] = record["parts"]
    tables = []
    for name in parts[AS_IS]:
        base = parts[AS_IS][name]
        rows = [[AS_IS, *_absolute(base)]]
        rows += [[variant, *_change(found[name], base)] for variant, found in parts.items() if variant != AS_IS]
        tables.append(f"#### {name}\n\n" + table([name, *_COLUMNS], rows))
    return "\n\n".join([title, *tables])


def _absolute(figures: Figures) -> list[str]:
    goodputs = [_known(figures, f"goodput {load}", "{:,.0f}") for load in _GOODPUTS]
    return [*goodputs, *_shares(figures), _known(figures, "bulk", "{:,.0f}")]


def _change(figures: Figures, base: Figures) -> list[str]:
    return [
        *[_relative(figures, base, f"goodput {load}") for load in _GOODPUTS],
        *_shares(figures),
        _relative(figures, base, "bulk"),
    ]


def _shares(figures: Figures) -> Sequence[str]:
    broken = max(value for key, value in figures.items() if key.startswith("broken "))
    error = figures.get("error drift", figures.get("p95 error drift"))
    return [
        f"{broken:.2%}",
        _known(figures, "rejected 0.9", "{:.2%}"),
        "" if error is None or error != error else f"{error:.1%}",
        _known(figures, "p99 ms more", "{:+.2f}"),
    ]


def _known(figures: Figures, key: str, shape: str) -> str:
    """The figure; empty where the run did not measure it, or too few answers came for it."""
    value: float | None = figures.get(key)
    return "" if value is None else shape.format(value)


def _relative(figures: Figures, base: Figures, key: str) -> str:
    value: Any = figures.get(key)
    return "" if value is None or not base.get(key) else f"{value / base[key] - 1:+.1%}"
