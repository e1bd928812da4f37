"""The benchmark of tracing: what a process at each level imports and exports, and the table."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.bench.common.processes import run_once
from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.tracing.collector import collector
from penstock.ops.bench.tracing.measured_process import Spec
from penstock.ops.bench.tracing.tracing_levels import LEVELS
from penstock.ops.bench.tracing.tracing_tables import grid

_REQUESTS = 120
_SPANS_OF_STAGES = 5  # process, tokenize, queue, engine, send


@pytest.mark.slow
@pytest.mark.parametrize("name", LEVELS)
def test_a_process_imports_and_exports_as_its_level_says(name: str, tmp_path: Path) -> None:
    level = LEVELS[name]
    with collector() as endpoint:
        spec = Spec(level.is_installed, level.share, endpoint, 1, _REQUESTS, _REQUESTS)
        measured = run_once("tracing.measured_process", asdict(spec), tmp_path / "log")
    assert measured["imported"] == (level.share is not None)
    [worker], [client] = measured["worker"], measured["client"]
    for cost in (worker, client):
        assert cost["requests"] == _REQUESTS
        assert cost["cpu_s"] > 0
    if level.share is None:
        assert worker["spans"] == client["spans"] == 0
    elif level.share == 1:
        assert client["spans"] == _REQUESTS
        assert worker["spans"] > _REQUESTS * _SPANS_OF_STAGES  # and those of batches
    else:
        assert client["spans"] < _REQUESTS
        assert worker["spans"] < _REQUESTS


def test_the_table_has_the_median_of_all_passes_of_all_runs() -> None:
    def run(*cpu_s: float) -> Run:
        costs = [{"requests": 1000, "cpu_s": seconds, "spans": 5500} for seconds in cpu_s]
        record: dict[str, Any] = {"parts": {"cost": {"details": {name: _both(costs) for name in LEVELS}}}}
        return Run(Path(), record)

    first = grid([run(0.02, 0.03), run(0.04)]).splitlines()[2]
    assert first == (
        "| OpenTelemetry is not installed | 30.00 (20.00 to 40.00) | 30.00 (20.00 to 40.00) | 5.50 | 5.50 |"
    )


def _both(costs: list[dict[str, float]]) -> dict[str, Any]:
    return {"worker": costs, "client": costs}
