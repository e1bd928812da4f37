"""The table of the kept runs of tracing, for the manual."""

from collections.abc import Mapping, Sequence
from typing import Any

from penstock.ops.bench.common.kept_tables import of_newest_machine
from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.common.verdicts import spread
from penstock.ops.bench.tracing.tracing_levels import LEVELS, SIDES

_PART = "cost"


def cost() -> str:
    """Table `tracing`: of the newest runs."""
    return of_newest_machine("tracing", [_PART], grid)


def grid(runs: Sequence[Run]) -> str:
    """Median of all passes, and min to max: processor µs, and spans that were exported."""
    details = [run.record["parts"][_PART]["details"] for run in runs]
    rows = []
    for name in LEVELS:
        passes = {side: [one for detail in details for one in detail[name][side]] for side in SIDES}
        rows.append(
            [
                name,
                *[str(spread(map(cpu_us, passes[side]))) for side in SIDES],
                *[_median_spans(passes[side]) for side in SIDES],
            ]
        )
    return table(["processor µs a request", *SIDES, *[f"exported spans a request, {side}" for side in SIDES]], rows)


def cpu_us(cost: Mapping[str, Any]) -> float:
    """Processor microseconds a request of one pass."""
    return float(cost["cpu_s"] / cost["requests"] * 1e6)


def spans_a_request(cost: Mapping[str, Any]) -> float:
    """Exported spans a request of one pass."""
    return float(cost["spans"] / cost["requests"])


def _median_spans(passes: Sequence[Mapping[str, Any]]) -> str:
    found = spread(map(spans_a_request, passes))
    return "" if found is None else f"{found.median:.2f}"
