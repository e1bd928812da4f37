"""The benchmark from plan to tables, on a harness whose engines are costs and whose real runs are simulated."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from penstock.engine import NullEngine
from penstock.ops.bench.common.machine import describe_machine
from penstock.ops.bench.common.runs import begin, current_runs, keep, machines
from penstock.ops.bench.common.verdicts import targets
from penstock.ops.bench.serving.harness.harness import BenchHarness, Known, Load
from penstock.ops.bench.serving.harness.run_plan import LENGTHS, PARTS, RunPlan
from penstock.ops.bench.serving.loads.drive import packed_batch, random_ids
from penstock.ops.bench.serving.loads.measured_driver import MeasuredDriver
from penstock.ops.bench.serving.loads.outcome import Outcome
from penstock.ops.bench.serving.loads.padding import padded, with_padding
from penstock.ops.bench.serving.loads.systems import (
    PAPER_CHAIN,
    PAPER_RATES,
    EngineKind,
    Limits,
    System,
    all_systems,
    default,
    on_packed,
    tei,
)
from penstock.ops.bench.serving.parts.saturation import Row
from penstock.ops.bench.serving.report.document import render
from penstock.ops.bench.serving.report.report_files import write_beside
from penstock.ops.bench.serving.report.run_tables import grids
from penstock.ops.bench.serving.report.serving_measures import measures
from penstock.ops.bench.serving.report.serving_plots import draw
from penstock.ops.bench.serving.serving_benchmark import measure, record_of
from penstock.ops.bench.serving.simulation.noise import Noise, noisy
from penstock.ops.bench.serving.simulation.simulate import simulate as simulate_worker
from penstock.ops.bench.serving.simulation.sweep import LARGE, SweepPlan, UnusableResult, run_sweep
from penstock.ops.bench.serving.simulation.sweep import PARTS as SWEEP_PARTS
from penstock.ops.cli.main import app
from penstock.scheduler import CostTable, LearnedCost, PackedCost, PaddedCost, Scheduler, SchedulerSettings
from penstock.worker.settings import WorkerSettings

pytestmark = pytest.mark.slow

COSTS: dict[EngineKind, PackedCost | PaddedCost] = {
    "packed": PackedCost(6e-3, 5e-3, 2e-5, 0.0),
    "padded": PaddedCost(12e-3, 10e-3, 3e-5, 0.0),
    "padding": PaddedCost(6e-3, 5e-3, 2e-5, 0.0),
}


class OnPaper(BenchHarness):
    """Nothing is loaded, and no time passes."""

    def __init__(self) -> None:
        super().__init__(WorkerSettings.model_validate({"model": "null"}), NullEngine())

    def measured(self, kind: EngineKind) -> Known:
        return Known(NullEngine(), LearnedCost(CostTable(COSTS[kind])), 1.0, (0.01, 0.02))

    def driven(self, system: System, load: Load, *, grace_s: float) -> Outcome:
        return self.simulated(system, load)

    def noise(self, kind: EngineKind) -> Noise:
        return Noise.none()


@pytest.fixture(scope="module")
def record() -> Row:
    bench = OnPaper()
    plan = RunPlan(seconds=1.0, slo_s=0.2, lengths=("2-100",), most_trials=1, simulated=(300, 500))
    parts = measure(bench, plan, lambda line: None)
    return record_of(bench, plan, parts, "on paper", begin("serving", describe_machine()))


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


class SlowerThanItsTable(OnPaper):
    """Real batches take as much longer as a claim may not overlook."""

    def driven(self, system: System, load: Load, *, grace_s: float) -> Outcome:
        driver = MeasuredDriver(Scheduler(system.settings, self.table(system.engine)), self.num_lanes)
        slower = noisy(self.table(system.engine), Noise(np.array([1.3])), seed=0)
        return simulate_worker(self._stream(load), driver, slower)


class Learning(SlowerThanItsTable):
    """And the simulator learns it."""

    def noise(self, kind: EngineKind) -> Noise:
        return BenchHarness.noise(self, kind)


@pytest.mark.parametrize(("bench", "is_right"), [(SlowerThanItsTable, False), (Learning, True)])
def test_the_simulator_is_right_about_real_runs_that_it_has_learned_from(bench: type[OnPaper], is_right: bool) -> None:
    plan = RunPlan(parts=("validation",), seconds=2.0, slo_s=0.2, lengths=("2-100",), most_trials=1)
    parts = measure(bench(), plan, lambda line: None)
    off = measures({"parts": parts, "is_gpu": False, "engines": {}})
    assert len(off) == 2
    assert (max(off.values()) <= 0.1) == is_right


def test_a_cost_that_moves_after_a_run_is_no_scatter_of_that_run() -> None:
    """The table follows the device; what batches scattered about is what was predicted of them then."""
    bench = Learning()
    system = on_packed(bench.limits(0.2))[0]
    outcome = OnPaper.driven(bench, system, Load("2-100", 50.0, 4.0), grace_s=0.0)
    bench.known("packed").cost.scale = 1.3
    bench.learn("packed", [outcome])
    np.testing.assert_allclose(bench.noise("packed").ratios, 1.0)


Doctor = Callable[[Row, float], None]


def _rate(system: str, reference: str) -> Doctor:
    """The system sustains so many times what the reference does."""

    def doctor(record: Row, value: float) -> None:
        rows = {row["system"]: row for row in record["parts"]["saturation"][0]["rows"]}
        rows[system]["saturation_per_s"] = value * rows[reference]["saturation_per_s"]

    return doctor


def _curve(record: Row, value: float) -> None:
    rows = {row["system"]: row for row in record["parts"]["saturation"][0]["rows"]}
    naive = rows["padded, naive, max 20"]["curve"]
    rows["padded, DP, max 20"]["curve"] = [(x, y * (value if at == 3 else 1.1)) for at, (x, y) in enumerate(naive)]


def _in_time(record: Row, value: float) -> None:
    for row in record["parts"]["goodput"]["rows"]:
        row["in_time_of_accepted"] = value if row["load"] == 0.9 else 0.5


def _kept(record: Row, value: float) -> None:
    for row in record["parts"]["goodput"]["rows"]:
        row["goodput_per_s"] = 100 * value if row["load"] == 2.0 else 100


def _beside_tei(record: Row, value: float) -> None:
    for row in record["parts"]["goodput"]["rows"]:
        is_worst = (row["load"], row["slo_s"], row["system"]) == (1.5, 0.1, "penstock default")
        row["goodput_per_s"] = 100 * value if is_worst else 100


def _burst(load: float) -> Doctor:
    def doctor(record: Row, value: float) -> None:
        for row in record["parts"]["bursts"]["rows"]:
            row["goodput_per_s"] = 100 * value if (row["load"], row["system"]) == (load, "penstock default") else 100

    return doctor


def _bulk(record: Row, value: float) -> None:
    without, beside = record["parts"]["classes"]["rows"]
    without["latency_s"]["p99"], beside["latency_s"]["p99"] = 0.010, 0.010 + value / 1e3


def _engine(kind: str, key: str) -> Doctor:
    def doctor(record: Row, value: float) -> None:
        record["engines"][kind][key] = [0.01, value] if key == "run_errors" else value

    return doctor


def _one_slo(record: Row, value: float) -> None:
    record["parts"]["scheduler"]["us"]["penstock default"] = value


def _dp(record: Row, value: float) -> None:
    record["parts"]["scheduler"]["dp_ms"] = {"packed": 0.1, "padded": value}


def _simulated(key: str) -> Doctor:
    def doctor(record: Row, value: float) -> None:
        row = record["parts"]["validation"]["rows"][0]
        row["again"][key] = row["real"][key]
        row["simulated"][key] = value * row["real"][key]

    return doctor


# A measure, how a record is doctored, the value that the doctor gets and the one that is measured.
GAIN = "saturation, 2-100 tokens"
STEADY, BURST = "goodput, 2-100 tokens", "bursts, 2-100 tokens"
CASES: list[tuple[str, Doctor, float, float]] = [
    (f"{GAIN}, GPU, default over one at a time", _rate("penstock default", "packed, none"), 12.0, 12.0),
    (
        f"{GAIN}, GPU, default over our runtime fed with padding, DP",
        _rate("penstock default", "padding, DP, max 20"),
        1.25,
        1.25,
    ),
    (
        f"{GAIN}, GPU, default over transformers padded, DP",
        _rate("penstock default", "padded, DP, max 20"),
        1.25,
        1.25,
    ),
    (f"{GAIN}, padded, DP over naive", _rate("padded, DP, max 20", "padded, naive, max 20"), 1.21, 1.21),
    (f"{GAIN}, padded, DP over naive, smallest of all rates, simulated", _curve, 0.98, 0.98),
    (f"{STEADY}, 0.9 of saturation, share of the accepted in time", _in_time, 0.998, 0.998),
    (f"{STEADY}, twice saturation, share of its peak", _kept, 0.89, 0.89),
    (f"{STEADY}, times TEI's rule, smallest of all loads and objectives", _beside_tei, 0.98, 0.98),
    (f"{BURST}, 0.4 of saturation, times TEI's rule", _burst(0.4), 1.001, 1.001),
    (f"{BURST}, 0.7 of saturation, times TEI's rule", _burst(0.7), 0.9, 0.9),
    ("online p99 beside bulk, more over what is allowed", _bulk, 1.9, 0.95),
    *[(f"cost model, {kind}, GPU, p95 of the error", _engine(kind, "run_errors"), 0.11, 0.11) for kind in COSTS],
    *[(f"cost model, {kind}, calibration, s", _engine(kind, "calibration_s"), 10.1, 10.1) for kind in COSTS],
    ("scheduler, 10,000 queued, one objective, µs a request", _one_slo, 5.1, 5.1),
    ("the DP of 1,000 queued, ms", _dp, 1.1, 1.1),
    ("simulator beside two real runs, throughput, largest error", _simulated("answered_per_s"), 1.11, 0.11),
    ("simulator beside two real runs, p99, largest error", _simulated("p99_s"), 0.89, 0.11),
]


@pytest.mark.parametrize(("measure", "doctor", "value", "measured"), CASES, ids=[case[0] for case in CASES])
def test_a_measure_is_what_the_run_recorded(
    record: Row, measure: str, doctor: Doctor, value: float, measured: float
) -> None:
    doctored = {**copy.deepcopy(record), "is_gpu": True}
    doctor(doctored, value)
    assert measures(doctored)[measure] == pytest.approx(measured)


def test_every_target_of_short_requests_has_a_case(record: Row) -> None:
    of_other_runs = ("5-500", "CPU", "share of the accepted in time")
    named = {target.measure for target in targets("serving")}
    assert {name for name in named if not any(other in name for other in of_other_runs)} <= {case[0] for case in CASES}


def test_the_files_hold_the_tables_and_the_plots(record: Row, tmp_path: Path) -> None:
    text = render(record)
    for grid in grids(record):
        assert grid.title in text
        assert all(len(row) == len(grid.columns) for row in grid.rows)
    path = keep(record, tmp_path)
    picture = write_beside(path, text)
    assert draw(record, picture) == [picture]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert path.with_suffix(".md").read_text(encoding="utf-8") == text
    assert json.loads(path.read_text(encoding="utf-8"))["parts"] == record["parts"]


def test_a_sweep_accounts_for_every_request_and_can_start_from_a_measurement(record: Row, tmp_path: Path) -> None:
    result = tmp_path / "serving.json"
    result.write_text(json.dumps(record), encoding="utf-8")
    plan = SweepPlan(parts=(*SWEEP_PARTS, LARGE), workers=(1, 4), num_requests=3000, num_large=5000, slo_s=0.2)
    assert run_sweep(plan, result=result, output=tmp_path) == 0
    (output,) = tmp_path.glob("simulation/*/*.json")
    swept = json.loads(output.read_text(encoding="utf-8"))
    (large,) = swept["parts"].pop(LARGE)
    assert (large["workers"], large["requests"], large["answered"] + large["refused"]) == (4, 5000, 5000)
    assert "requests simulated a second" in output.with_suffix(".md").read_text(encoding="utf-8")
    rows = [row for part in swept["parts"].values() for row in part]
    assert all(row["answered"] + row["refused"] == row["requests"] == 3000 for row in rows)
    by_load = swept["parts"]["load"]
    assert by_load[-1]["p99_s"] > by_load[0]["p99_s"]
    assert by_load[0]["paid_s_per_million"] > by_load[3]["paid_s_per_million"]
    assert output.with_suffix(".md").exists()
    assert output.with_suffix(".png").exists()


@pytest.mark.parametrize("content", ["garbage", "{}", "[]", '{"engines": {"packed": {}}}', "null"])
def test_a_file_without_measured_costs_is_refused_with_a_sentence(content: str, tmp_path: Path) -> None:
    result = tmp_path / "serving.json"
    result.write_text(content, encoding="utf-8")
    with pytest.raises(UnusableResult, match=r"serving\.json is no result of penstock bench serve"):
        run_sweep(SweepPlan(), result=result, output=None)


def test_an_objective_that_nothing_meets_leaves_nothing_to_simulate() -> None:
    with pytest.raises(UnusableResult, match=r"within 0\.001 ms"):
        run_sweep(SweepPlan(parts=("load",), workers=(1,), num_requests=1000, slo_s=1e-6), result=None, output=None)


MEASURED = [
    run.path
    for suite in ("serving", "serving-kafka")
    for machine in machines(suite)
    for run in current_runs(suite, machine)
]


@pytest.mark.parametrize("result", MEASURED, ids=lambda path: path.name)
def test_a_fleet_can_be_simulated_of_every_current_result(result: Path) -> None:
    assert run_sweep(SweepPlan(parts=("load",), workers=(1,), num_requests=1000), result=result, output=None) == 0


@pytest.mark.parametrize(("parts", "lengths", "is_kept"), [(PARTS, LENGTHS, True), (("scheduler",), LENGTHS, False)])
def test_only_a_whole_run_is_kept_where_nobody_says_where(
    parts: tuple[str, ...], lengths: tuple[str, ...], is_kept: bool
) -> None:
    assert RunPlan(parts=parts, lengths=lengths).is_whole == is_kept
    assert not RunPlan(parts=parts, lengths=("squad",)).is_whole


def test_a_sweep_of_one_part_has_its_table_and_its_files(tmp_path: Path) -> None:
    plan = SweepPlan(parts=("loss",), workers=(1, 2), num_requests=1000)
    assert run_sweep(plan, result=None, output=tmp_path) == 0
    (output,) = tmp_path.glob("simulation/*/*.json")
    assert set(json.loads(output.read_text(encoding="utf-8"))["parts"]) == {"loss"}
    assert output.with_suffix(".png").exists()


def test_a_run_that_saturation_is_taken_from_is_long_enough_and_not_too_long() -> None:
    plan = RunPlan(seconds=2.5, saturated_answers=600)
    seconds = [plan.overload("2-100", 1.4 * rate, 0.05, rate).seconds for rate in (10.0, 100.0, 200.0, 10_000.0)]
    assert seconds == [8.0, 5.0, 3.0, 2.5]  # 80 answers, twice the usual, 600 answers, the usual


def test_what_a_token_costs_alone_and_in_a_full_batch_follows_from_the_table() -> None:
    us = OnPaper().lane_us_a_token("packed", "2-100")
    assert us["in_full"] in (19, 20)  # of 51 tokens on average, by chance 52
    assert us["alone"] == pytest.approx((5e-3 / 51 + 2e-5) * 1e6, rel=0.1)
    assert us["full"] == pytest.approx((5e-3 / 1024 + 2e-5) * 1e6, rel=0.1)


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
        (["simulate", "--workers", "0,4"], "whole numbers from 1"),
        (["simulate", "--parts", "large,teapot"], "Expected some of load"),
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
