"""Ablation of the scheduler: real runs have the figures of simulated ones, and a variant is in force in both."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.engine import BatchOutput, NullEngine, PackedBatch
from penstock.ops.bench.common.runs import begin, keep
from penstock.ops.bench.serving.ablation.ablation_table import ablations
from penstock.ops.bench.serving.ablation.devices import RealDevice, SimulatedDevice
from penstock.ops.bench.serving.ablation.scenarios import Scenario, measure, run
from penstock.ops.bench.serving.ablation.variants import VARIANTS
from penstock.scheduler import CostTable, PackedCost, SchedulerSettings
from penstock.scheduler.queueing.job_queue import JobQueue, QueuedJob

BATCH_S = 0.001
DRIFTED = Scenario(0.5, drift=1.5)
SLO_S = 5.0  # no run ends before its answers, however slow the machine is


class OfOneTime(NullEngine):
    """Says that each batch took as long."""

    def run(self, batch: PackedBatch) -> BatchOutput:
        return BatchOutput(super().run(batch).rows, BATCH_S)


@pytest.fixture
def real() -> RealDevice:
    """An engine that computes nothing, in place of one on this machine."""
    table = CostTable(PackedCost(BATCH_S, 0.0, 0.0, 0.0))
    return RealDevice(OfOneTime(), table, SchedulerSettings(0.002, 64, 4096, SLO_S), SLO_S, 1000.0, 100.0)


def test_requests_of_a_real_run_are_answered_and_the_cost_learns_from_them(real: RealDevice) -> None:
    outcome, cost = run(real, DRIFTED, seed=0)
    assert sum(batch.count for batch in outcome.batches) + outcome.num_refused == len(outcome.arrival) == 50
    assert cost.scale == pytest.approx(DRIFTED.drift)


def test_a_variant_is_in_force_in_a_real_run(real: RealDevice) -> None:
    with VARIANTS["learning: none"]():
        _, cost = run(real, DRIFTED, seed=0)
    assert cost.scale == 1


@pytest.mark.parametrize(("name", "late_s"), [("as is", [0.5, -0.5]), ("admission: own deadline only", [-0.5, 0.5])])
def test_jobs_may_make_those_behind_them_late_where_only_their_own_deadlines_count(
    name: str, late_s: list[float]
) -> None:
    """One that is admitted counts for those after it."""
    queue = JobQueue()
    queue.add([QueuedJob(2.0, 0, 0, 1, 0.0, 2.0, 1.0, 0.5)])
    before, behind = QueuedJob(1.0, 1, 1, 1, 0.0, 1.0, 1.0, 0.5), QueuedJob(3.0, 2, 2, 1, 0.0, 3.0, 1.0, 1.5)
    with VARIANTS[name]():
        assert queue.lateness([[before], [behind]], 0.0) == late_s


def test_under_drift_a_batch_takes_longer_than_the_scheduler_is_told(real: RealDevice) -> None:
    told = real.drifted(1.5)
    assert told.table.seconds(10, 100, 10, 1) == pytest.approx(BATCH_S / 1.5)
    assert told.saturation_per_s == real.saturation_per_s
    kept = SimulatedDevice.kept("CPU", "packed")
    assert kept.drifted(1.5).table == kept.table
    assert kept.drifted(1.5).saturation_per_s == pytest.approx(kept.saturation_per_s / 1.5)


@pytest.mark.slow
def test_real_runs_have_the_figures_of_simulated_ones(real: RealDevice) -> None:
    kept = replace(SimulatedDevice.kept("CPU", "packed"), requests=60)
    assert measure(real, real, 0).keys() == measure(kept, kept, 0).keys()


def test_a_run_in_which_too_few_requests_were_answered_for_a_percentile_has_a_table(tmp_path: Path) -> None:
    figures = {"broken 0.9": 0.1, "goodput 0.9": 26.0, "p99 ms more": math.inf, "bulk": 12.0}
    machine = {"cpu": "AMD EPYC", "cores_used": [0, 1], "versions": {}, "commit": "a" * 40}
    keep({**begin("ablation", machine), "parts": {"as is": {"CPU, real runs": figures}}}, tmp_path)
    row = ablations(tmp_path).splitlines()[-1]
    assert row.startswith("| as is | 26 |")
    assert row.endswith("|  | 12 |")
