"""The benchmark from plan to tables, on a harness whose engines are costs and whose real runs are simulated."""

import json
from pathlib import Path

import pytest

from penstock.engine import NullEngine
from penstock.ops.bench.common.machine import describe_machine
from penstock.ops.bench.common.runs import begin, keep
from penstock.ops.bench.serving.harness import BenchHarness, Known, Load
from penstock.ops.bench.serving.loads.outcome import Outcome
from penstock.ops.bench.serving.loads.systems import DEFAULT, SYSTEMS, TEI, EngineKind, System, system_of
from penstock.ops.bench.serving.parts.saturation import Row
from penstock.ops.bench.serving.run_plan import LENGTHS, PARTS, RunPlan
from penstock.ops.bench.serving.serving_benchmark import measure, record_of, tables_of
from penstock.ops.bench.serving.simulation.sweep import SweepPlan, UnusableResult, run_sweep
from penstock.ops.cli.main import app
from penstock.scheduler import CostTable, LearnedCost, PackedCost, PaddedCost, SchedulerSettings
from penstock.worker.settings import WorkerSettings

pytestmark = pytest.mark.slow

COSTS: dict[EngineKind, PackedCost | PaddedCost] = {
    "packed": PackedCost(6e-3, 5e-3, 2e-5, 0.0),
    "padded": PaddedCost(12e-3, 10e-3, 3e-5, 0.0),
}


class OnPaper(BenchHarness):
    """Nothing is loaded, and no time passes."""

    def __init__(self) -> None:
        super().__init__(WorkerSettings.model_validate({"model": "null"}), NullEngine())

    def measured(self, kind: EngineKind) -> Known:
        return Known(NullEngine(), LearnedCost(CostTable(COSTS[kind])), 1.0)

    def driven(self, system: System, load: Load, *, grace_s: float) -> Outcome:
        return self.simulated(system, load)


@pytest.fixture(scope="module")
def record() -> Row:
    bench = OnPaper()
    plan = RunPlan(seconds=1.0, slo_s=0.2, lengths=("2-100",))
    parts = measure(bench, plan, lambda line: None)
    return record_of(bench, plan, parts, "on paper", begin("serving", describe_machine()))


def test_every_part_of_the_plan_is_measured_and_has_its_table(record: Row, tmp_path: Path) -> None:
    assert set(record["parts"]) == set(PARTS)
    (workload,) = record["parts"]["saturation"]
    assert [row["system"] for row in workload["rows"]] == [*SYSTEMS, DEFAULT]
    assert len(record["parts"]["goodput"]["rows"]) == 5 * 3 * 2
    tables = tables_of(record).split("\n\n")
    # Of goodput, the rows of the own objective; of costs, the engines.
    assert [len(table.splitlines()) - 2 for table in tables[1::2]] == [len(SYSTEMS) + 1, 5 * 2, 2 * 2, 2, 2]
    path = keep(record, tmp_path)
    assert json.loads(path.read_text(encoding="utf-8"))["parts"] == record["parts"]


def test_a_part_alone_is_measured_at_the_saturation_of_the_default() -> None:
    plan = RunPlan(parts=("classes",), seconds=1.0, slo_s=0.2, lengths=("2-100",))
    parts = measure(OnPaper(), plan, lambda line: None)
    assert set(parts) == {"classes"}
    without, beside = parts["classes"]["rows"]
    assert without["bulk_per_s"] == 0 < beside["bulk_per_s"]


def test_batching_and_the_dp_gain_what_their_costs_allow(record: Row) -> None:
    rates = {row["system"]: row["saturation_per_s"] for row in record["parts"]["saturation"][0]["rows"]}
    assert rates["penstock default"] > 1.2 * rates["packed, none"]
    assert rates["padded, DP, max 20"] > rates["padded, naive, max 20"]
    assert rates["penstock default"] > rates["padded, DP"]


def test_beyond_saturation_the_default_refuses_and_keeps_what_it_accepts(record: Row) -> None:
    rows = {(row["load"], row["slo_s"], row["system"]): row for row in record["parts"]["goodput"]["rows"]}
    ours, theirs = rows[2.0, 0.2, DEFAULT], rows[2.0, 0.2, TEI]
    assert ours["refused"]
    assert not theirs["refused"]
    assert ours["in_time_of_accepted"] > 0.99 > theirs["in_time_of_accepted"]


def test_a_sweep_can_start_from_a_measurement(record: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "serving.json"
    result.write_text(json.dumps(record), encoding="utf-8")
    assert run_sweep(SweepPlan(workers=(1, 4), num_requests=3000, slo_s=0.2), result=result) == 0
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    rows = {line[0]: line[1:] for line in lines if line}
    assert {"0.2 x", "2 x", "1, all different", "4, Zipf"} < rows.keys()
    p99_ms, paid_s = ({name: float(row[at]) for name, row in rows.items() if name.endswith(" x")} for at in (2, 5))
    assert p99_ms["2 x"] > p99_ms["0.2 x"]
    assert paid_s["0.2 x"] > paid_s["0.8 x"]


@pytest.mark.parametrize("content", ["garbage", "{}", "[]", '{"engines": {"packed": {}}}', "null"])
def test_a_file_without_measured_costs_is_refused_with_a_sentence(content: str, tmp_path: Path) -> None:
    result = tmp_path / "serving.json"
    result.write_text(content, encoding="utf-8")
    with pytest.raises(UnusableResult, match=r"serving\.json is no result of penstock bench serve"):
        run_sweep(SweepPlan(), result=result)


def test_an_objective_that_nothing_meets_leaves_nothing_to_simulate() -> None:
    with pytest.raises(UnusableResult, match=r"within 0\.001 ms"):
        run_sweep(SweepPlan(workers=(1,), num_requests=1000, slo_s=1e-6), result=None)


@pytest.mark.parametrize(("parts", "lengths", "is_kept"), [(PARTS, LENGTHS, True), (("scheduler",), LENGTHS, False)])
def test_only_a_whole_run_is_kept_where_nobody_says_where(
    parts: tuple[str, ...], lengths: tuple[str, ...], is_kept: bool
) -> None:
    assert RunPlan(parts=parts, lengths=lengths).is_whole == is_kept
    assert not RunPlan(parts=parts, lengths=("squad",)).is_whole


def test_a_run_that_saturation_is_taken_from_is_long_enough_and_not_too_long() -> None:
    plan = RunPlan(seconds=2.5)
    seconds = [plan.overload("2-100", 1.4 * rate, 0.05, rate).seconds for rate in (10.0, 100.0, 200.0, 10_000.0)]
    assert seconds == [8.0, 5.0, 3.0, 2.5]  # 80 answers, twice the usual, 600 answers, the usual


def test_the_default_keeps_deadlines_and_teis_rule_knows_none() -> None:
    worker = SchedulerSettings(max_wait_s=0.002, max_batch_sequences=256, max_batch_tokens=1024, slo_s=None)
    ours, theirs = (system_of(name, worker, slo_s=0.05).settings for name in (DEFAULT, TEI))
    assert (ours.slo_s, ours.admission, ours.order) == (0.05, "deadline", "edf")
    assert (theirs.slo_s, theirs.admission, theirs.trigger, theirs.order) == (None, "accept", "hungry", "arrival")
    assert (ours.max_batch_tokens, theirs.max_batch_tokens) == (1024, 1024)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serve", "--lengths", "3-7"], "Expected some of 2-100"),
        (["serve", "--parts", "saturation,teapot"], "Expected some of saturation"),
        (["serve", "--slo-ms", "0"], "--slo-ms"),
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
