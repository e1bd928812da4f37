"""The benchmark from plan to tables, on a stand whose engines are costs and whose real runs are simulated."""

import json
from pathlib import Path

import numpy as np
import pytest

from penstock.engine import NullEngine
from penstock.ops.bench.serving.claims import claims
from penstock.ops.bench.serving.drive import packed_batch, random_ids
from penstock.ops.bench.serving.outcome import Outcome
from penstock.ops.bench.serving.padding import padded, with_padding
from penstock.ops.bench.serving.part_saturation import Row
from penstock.ops.bench.serving.plan import PARTS, RunPlan
from penstock.ops.bench.serving.plots import draw
from penstock.ops.bench.serving.record import write
from penstock.ops.bench.serving.serve import measure, record_of
from penstock.ops.bench.serving.simulate import Noise
from penstock.ops.bench.serving.stand import Known, Load, Stand
from penstock.ops.bench.serving.sweep import SweepPlan, simulate
from penstock.ops.bench.serving.systems import (
    PAPER_CHAIN,
    PAPER_RATES,
    EngineKind,
    Limits,
    System,
    all_systems,
    default,
    tei,
)
from penstock.ops.bench.serving.tables import grids, render
from penstock.ops.cli.main import app
from penstock.scheduler import CostTable, LearnedCost, PackedCost, PaddedCost, SchedulerSettings
from penstock.worker.settings import WorkerSettings

COSTS: dict[EngineKind, PackedCost | PaddedCost] = {
    "packed": PackedCost(6e-3, 5e-3, 2e-5, 0.0),
    "padded": PaddedCost(12e-3, 10e-3, 3e-5, 0.0),
    "padding": PaddedCost(6e-3, 5e-3, 2e-5, 0.0),
}


class OnPaper(Stand):
    """Nothing is loaded, and no time passes."""

    def __init__(self) -> None:
        super().__init__(WorkerSettings.model_validate({"model": "null"}), NullEngine())

    def measured(self, kind: EngineKind) -> Known:
        return Known(NullEngine(), LearnedCost(CostTable(COSTS[kind])), 1.0, (0.01, 0.02))

    def real(self, system: System, load: Load, *, grace_s: float) -> Outcome:
        return self.simulated(system, load)

    def noise(self, kind: EngineKind) -> Noise:
        return Noise.none()


@pytest.fixture(scope="module")
def record() -> Row:
    stand = OnPaper()
    plan = RunPlan(seconds=1.0, slo_s=0.2, lengths=("2-100",), most_trials=1, simulated=(300, 500))
    parts = measure(stand, plan, lambda line: None)
    return record_of(stand, plan, parts, "on paper", "today", 1.0)


def test_every_part_of_the_plan_is_measured(record: Row) -> None:
    assert set(record["parts"]) == set(PARTS)
    (workload,) = record["parts"]["saturation"]
    names = [system.name for system in all_systems(limits())]
    assert [row["system"] for row in workload["rows"]] == names
    assert len(record["parts"]["goodput"]["rows"]) == 5 * 3 * 2


def test_batching_and_the_dp_gain_what_their_costs_allow(record: Row) -> None:
    rates = {row["system"]: row["saturation_per_s"] for row in record["parts"]["saturation"][0]["rows"]}
    assert rates["penstock default"] > 1.2 * rates["packed, none"]
    assert rates["padded, DP, max 20"] > rates["padded, naive, max 20"]
    assert rates["penstock default"] > rates["padded, DP"]


def test_a_critical_point_is_below_saturation_and_in_time(record: Row) -> None:
    for row in record["parts"]["saturation"][0]["rows"]:
        if row["critical_per_s"] is not None:
            assert row["critical_per_s"] < 1.1 * row["saturation_per_s"]
            assert row["at_critical"]["latency_s"]["p99"] <= 0.2


def test_the_simulator_is_held_to_real_runs(record: Row) -> None:
    judged = {claim.work: claim.criterion for claim in claims(record)}
    for what in ("throughput", "p99 of what is answered"):
        criterion = judged[f"simulator beside a real run, {what}"]
        assert criterion is not None
        assert criterion.value == 0  # these "real" runs are simulated
        assert criterion.verdict == "aim"


def test_on_a_gpu_the_gains_are_judged_and_on_a_cpu_reported(record: Row) -> None:
    for is_gpu in (False, True):
        gains = [claim for claim in claims({**record, "is_gpu": is_gpu}) if claim.work.startswith("saturation")]
        assert len(gains) == 3
        assert all((claim.criterion is not None) == is_gpu for claim in gains)


def test_the_files_hold_the_tables_and_the_plots(record: Row, tmp_path: Path) -> None:
    text = render(record)
    for grid in grids(record):
        assert grid.title in text
        assert all(len(row) == len(grid.columns) for row in grid.rows)
    picture = write(record, text, tmp_path / "out" / "serving.json")
    assert draw(record, picture) == [picture]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "out" / "serving.json").read_text(encoding="utf-8")) == record


def test_a_sweep_accounts_for_every_request_and_can_start_from_a_measurement(record: Row, tmp_path: Path) -> None:
    result, output = tmp_path / "serving.json", tmp_path / "fleet.json"
    result.write_text(json.dumps(record), encoding="utf-8")
    plan = SweepPlan(workers=(1, 4), num_requests=3000, slo_s=0.2)
    assert simulate(plan, result=result, output=output) == 0
    swept = json.loads(output.read_text(encoding="utf-8"))
    rows = [row for part in swept["parts"].values() for row in part]
    assert all(row["answered"] + row["refused"] == row["requests"] == 3000 for row in rows)
    by_load = swept["parts"]["load"]
    assert by_load[-1]["p99_s"] > by_load[0]["p99_s"]
    assert by_load[0]["paid_s_per_million"] > by_load[3]["paid_s_per_million"]
    assert output.with_suffix(".md").exists()
    assert output.with_suffix(".png").exists()


def test_the_papers_systems_are_rows_of_the_table() -> None:
    names = {system.name for system in all_systems(limits())}
    assert {ours for _, ours in PAPER_CHAIN} <= names
    assert all(len(rates) == len(PAPER_CHAIN) for rates in PAPER_RATES.values())


def test_the_default_keeps_deadlines_and_teis_rule_knows_none() -> None:
    ours, theirs = default(limits()).settings, tei(limits()).settings
    assert (ours.slo_s, ours.admission, ours.order) == (0.05, "deadline", "edf")
    assert (theirs.slo_s, theirs.admission, theirs.trigger, theirs.order) == (None, "accept", "hungry", "arrival")
    assert (ours.max_batch_tokens, theirs.max_batch_tokens) == (1024, 1024)


def test_padding_makes_every_sequence_as_long_as_the_longest() -> None:
    batch = packed_batch(random_ids(np.array([3, 17, 1, 17, 8]), 1000, seed=0))
    full = padded(batch)
    longest = batch.max_seqlen
    assert len(full.token_ids) == 5 * longest
    assert full.cu_seqlens.tolist() == [index * longest for index in range(6)]
    for index in range(5):
        begin, end = batch.cu_seqlens[index : index + 2]
        own = full.token_ids[index * longest : (index + 1) * longest]
        assert own[: end - begin].tolist() == batch.token_ids[begin:end].tolist()
        assert not own[end - begin :].any()
    engine = with_padding(NullEngine())
    assert engine.info.padded
    assert len(engine.run(batch).rows) == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--lengths", "3-7"], "Expected some of 2-100"),
        (["serve", "--parts", "saturation,teapot"], "Expected some of saturation"),
        (["serve", "--slo-ms", "0"], "--slo-ms"),
        (["serve", "--kafka-rates", "0"], "Expected numbers above 0"),
        (["simulate", "--workers", "0,4"], "whole numbers from 1"),
        (["simulate", "--lengths", "2-100,5-500"], "Expected one of"),
    ],
)
def test_what_cannot_be_measured_is_refused_with_a_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exited:
        app(["bench", *arguments], prog_name="penstock")
    assert exited.value.code == 2
    assert said in capsys.readouterr().err


def limits() -> Limits:
    worker = SchedulerSettings(max_wait_s=0.002, max_batch_sequences=256, max_batch_tokens=1024, slo_s=None)
    return Limits(worker, slo_s=0.05)
