"""scheduler/ABLATION.md: the kept runs of the ablation, and every constant with what chose it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.ops.bench.common.markdown import table
from penstock.ops.bench.common.runs import Run, kept_runs

PAGE = Path(__file__).resolve().parents[3] / "scheduler" / "ABLATION.md"
AS_IS = "as is"

Figures = Mapping[str, float]

_HEAD = """# Ablation of the scheduler

Written by `python -m penstock.ops.bench.serving.ablation`; not to be edited. Every run is simulated: the real scheduler
and lane driver, and batches that take the seconds of a kept run's cost table, noise and host time (CPU: 2 cores of an
AMD EPYC, bfloat16 all-MiniLM-L6-v2; H200: BERT-base in float16; 2 to 100 tokens). The scheduler learns from them as a
worker does. The first row of a table has the figures, every other the change against it: a mechanism stays if leaving
it out changes a figure by more than 2 %, or if it gives a guarantee that tests/scheduler states.

- **0.9, 2.0**: answers in time a second at that load, in saturations, with Poisson arrivals; **bursts**: 0.7 of
  saturation, in bursts of five times the mean; **mixed**: 1.5, deadlines of half, one and two SLOs in turn; **drift**:
  1.5, and every batch takes 1.5 times what the table says; **padded**: 2.0, on the engine that pads
- **broken**: share of the admitted requests that were not answered in time (percent), the worst of these loads
- **rejected at 0.9**: share of requests rejected though there was capacity for them (percent)
- **p95 error**: of predicted batch seconds under drift (percent)
- **p99 beside bulk**: ms that saturating bulk adds to the online p99 at half load; **bulk**: its answers a second. In
  the runs of 20,000 requests on the H200 (commit ccb1f46) its start is most of the p99.
"""

_GOODPUTS = ("0.9", "2.0", "bursts", "mixed", "drift", "padded")
_COLUMNS = (*_GOODPUTS, "broken", "rejected at 0.9", "p95 error", "p99 beside bulk", "bulk")

_CONSTANTS = (
    ("work_estimator.BATCH_SHARE", "1/4", "table: 1/2 loses bursts, 1/8 loses throughput on the CPU"),
    ("work_estimator.LATENESS_SHARE", "1/8", "1/16 and 1/4 give the same; bounds what lateness may reject (test_lag)"),
    ("work_estimator._MEMORY", "1024 jobs", "table: 64 changes 1 %; longer is steadier"),
    (
        "lateness._NUM_RECENT, _BLOCK",
        "64 batches, 8",
        "table: 16; one window without blocks breaks 3 times as many promises",
    ),
    ("lateness._HIGH", "0.9", "table: 0.5 breaks more promises"),
    ("lateness._MAX_SHARE", "1/2", "guarantee: an idle worker admits a job that leaves half its SLO (test_lag)"),
    ("lateness._LEAST_HORIZON_S, _MOST_HORIZON_S", "20 ms, 1 s", "guarantee: one stall counts no more than an SLO"),
    ("learned._NUM_RECENT", "15 batches", "seven outliers change nothing (test_learning); table: 45"),
    ("learned._SLOW_GAIN, _QUICK_GAIN", "0.05, 0.3", "noise of 3 % moves nothing, a change is followed in 30 batches"),
    ("learned._ABSURD", "1e6", "guarantee: no impossible time is learned (test_learning)"),
    ("partition.MIN_GAIN", "2 %", "less is within the error of predictions (p95 error)"),
    ("partition.MIN_DP_GAIN", "1 %", "asked for; table: dp at any gain"),
    ("partition._MAX_REST", "64 plans", "a question costs 1 ms at most, so 16 us a plan; a new mix is seen within 64"),
    ("timeline._HEADROOM", "1024 jobs", "memory alone: the arrays are rebuilt after so many insertions"),
    ("lane_driver._TRIAL_EVERY_S", "1 s", "guarantee: predictions far too high are corrected (test_lane_driver)"),
    (
        "bulk_share._LOAD_WINDOW_S",
        "0.25 s",
        "guarantee: with the last plan alone bulk adds 2.9 ms where 2.7 are stated (test_bulk)",
    ),
    ("settings.bulk_slice_s", "2 ms", "asked for: bulk may add 2 ms to the online p99 (test_bulk)"),
    ("fit: knots, ratio 1.25, stiffness 1/4, factors in 1/4 to 4", "", "unseen batches within 6 % (test_cost_fit)"),
    ("fit._ABSURD, _AGREED", "8, 0.01", "one timing out of proportion poisons nothing (test_cost_fit)"),
    ("dp_kernel (numba)", "", "1,000 queued, batches of up to 512: 0.7 to 1.1 ms compiled, 47 to 53 ms in numpy"),
)


def render(machine: str) -> str:
    """The page, from every kept run on this machine, the latest first."""
    sections = [_section(run) for run in reversed(kept_runs("ablation", machine))]
    rows = [list(row) for row in _CONSTANTS]
    constants = "## Constants\n\n" + table(["constant", "value", "chosen by"], rows)
    return "\n\n".join([_HEAD.rstrip(), *sections, constants]) + "\n"


def _section(run: Run) -> str:
    record = run.record
    load = ", ".join(str(value) for value in record["load"]["before"])
    title = f"## Commit {run.commit}, {run.date}\n\n`{record['command']}`; host load before: {load}"
    parts: Mapping[str, Mapping[str, Figures]] = record["parts"]
    tables = []
    for name in parts[AS_IS]:
        base = parts[AS_IS][name]
        rows = [[AS_IS, *_absolute(base)]]
        rows += [[variant, *_change(found[name], base)] for variant, found in parts.items() if variant != AS_IS]
        tables.append(f"### {name}\n\n" + table([name, *_COLUMNS], rows))
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
        f"{figures['p99 ms more']:+.2f}",
    ]


def _known(figures: Figures, key: str, shape: str) -> str:
    return shape.format(figures[key]) if key in figures else ""


def _relative(figures: Figures, base: Figures, key: str) -> str:
    value: Any = figures.get(key)
    return "" if value is None or not base.get(key) else f"{value / base[key] - 1:+.1%}"
