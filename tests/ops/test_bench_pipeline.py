"""The benchmark of a fleet: the arithmetic of its figures, and a short run of the null engine through a real Kafka."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.bench.common.part_runner import run_part
from penstock.ops.bench.common.runs import Run, begin
from penstock.ops.bench.common.suite import BenchSuite
from penstock.ops.bench.common.verdicts import targets
from penstock.ops.bench.load.call_times import CallTimes, figures
from penstock.ops.bench.load.loads import Load, open_load
from penstock.ops.bench.pipeline import fleet_bench, pipeline_bench
from penstock.ops.bench.pipeline.fleet_bench import prediction_error_p95
from penstock.ops.bench.pipeline.pipeline_bench import SCALES, PipelineBench, closed_loads
from penstock.ops.bench.pipeline.pipeline_tables import CLOSED, OF_MODELS, PARTS, SUITE, TABLES
from penstock.ops.bench.suites import MODELS, PIPELINE
from penstock.ops.kafka import FAST_START

FEW = dataclasses.replace(SCALES["cpu"], alone_short=32, alone_long=8)
MACHINE = {"cpu": "AMD EPYC", "cores_used": [0, 1], "versions": {}}


@pytest.fixture(autouse=True)
def brokers_that_start_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of seconds: compiling a broker for full speed would take most of the processor time."""
    monkeypatch.setattr(fleet_bench, "FULL_SPEED", FAST_START)


def test_a_model_gets_no_sequence_that_is_too_long_for_it() -> None:
    loads = closed_loads(SCALES["cpu"], 1.0, 1.0, max_tokens=256, texts=True)
    assert [load.name for load in loads] == ["ids 2-100", "shared calls", "a record each", "texts 2-100"]


def test_every_target_is_of_a_measure_and_every_table_has_rows(tmp_path: Path) -> None:
    record = whole_record()
    for machine, kind in ((MACHINE, "pipeline-cpu"), ({**MACHINE, "gpu": "NVIDIA H200"}, "pipeline")):
        assert {target.measure for target in targets(kind)} <= SUITE.measures(record).keys()
        shown = TABLES["pipeline-targets"].of_runs([Run(tmp_path, {**record, "machine": machine})])
        assert shown.count("\n") - 1 == len(targets(kind))
    for name, table in TABLES.items():
        assert table.of_runs([Run(tmp_path, record)]).count("\n") >= (2 if name == "headline" else 3), name


def test_an_error_of_a_prediction_is_relative_to_what_was_measured() -> None:
    batches = [{"predicted_s": predicted_s, "device_s": 2e-3} for predicted_s in (2e-3, 1e-3, 3e-3)]
    assert prediction_error_p95(batches) == pytest.approx(0.5)
    assert prediction_error_p95([]) is None


@pytest.mark.slow
@pytest.mark.integration
def test_a_fleet_of_two_null_workers_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet_bench, "KILL_AFTER_S", 1.5)
    monkeypatch.setattr(fleet_bench, "KILL_SECONDS", 3.0)
    parts = ["idle", "closed", "job", "open", "overload", "kill", "drain", "fleet"]
    record = measured(parts, commands=2, rates=[100], seconds=2.0)
    found = {name: part["result"] for name, part in record["parts"].items()}
    assert found["fleet"]["members"] == 2
    assert all(load["requests_per_s"] > 0 for load in found["closed"]["loads"].values())
    assert found["fleet"]["batches"]["count"] > 0
    used = found["closed"]["loads"]["ids 2-100"]["cores"]
    assert {"broker 0", "member 0", "member 1", "client 0"} <= used.keys()
    assert found["job"]["not_applicable"]
    assert found["open"]["loads"]["100/s"]["answered_share"] > 0
    assert found["overload"]["offered_per_s"] > 0
    assert (found["kill"]["lost"], found["kill"]["members_after"]) == (0, 1)
    assert sorted(found["drain"]["exit_codes"]) == [-9, 0]
    assert {"ids 2-100, req/s", "idle member, cores", "drain, s"} <= SUITE.measures(record).keys()


@pytest.mark.slow
@pytest.mark.integration
def test_three_brokers_share_the_work() -> None:
    record = measured(["open"], brokers=3, rates=[200])
    load = record["parts"]["open"]["result"]["loads"]["200/s"]
    assert load["answered_share"] == 1.0
    assert all(load["cores"][f"broker {number}"] > 0 for number in range(3))


@pytest.mark.slow
@pytest.mark.integration
def test_a_shape_of_model_is_measured_through_kafka_and_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pipeline_bench.SCALES, "cpu", FEW)
    part = MODELS.parts["MiniLM-L6"]
    record = run_parts({"MiniLM-L6": (part.function, ["BERT-tiny"])}, MODELS)  # smaller
    shown = OF_MODELS["pipeline-models"].of_runs(
        [Run(tmp_path, {**begin("models", MACHINE, commit="abcdef0"), **record})]
    )
    assert shown.count("MiniLM-L6, texts 2-100") == 1
    alone = record["parts"]["MiniLM-L6"]["result"]["alone"]
    assert alone["engine"].keys() == {"ids 2-100", "texts 2-100"}  # the others are too long for it
    assert alone["sentence_transformers"]["texts 2-100"]["batch"] in FEW.st_batches


@pytest.mark.slow
@pytest.mark.integration
def test_a_route_is_measured_by_the_vectors_of_its_output_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(pipeline_bench.SCALES, "cpu", FEW)
    record = run_parts({"route": (MODELS.parts["route"].function, ["BERT-tiny"])}, MODELS)
    run = Run(tmp_path, {**begin("models", MACHINE, commit="abcdef0"), **record})
    shown = OF_MODELS["pipeline-route"].of_runs([run])
    assert {target.measure for target in targets("models")} <= OF_MODELS["pipeline-route"].suite.measures(record).keys()
    assert shown.count("| texts 2-100 |") == shown.count("| texts 5-500 |") == 1
    rounds = record["parts"]["route"]["result"]["loads"]["texts 2-100"]
    assert all(one["output_bytes"] > 500 for one in rounds)


def measured(parts: list[str], **changed: Any) -> dict[str, Any]:
    """The parts of a short run of the null engine."""
    return run_parts({name: (PIPELINE.parts[name].function, []) for name in parts}, PIPELINE, model="null", **changed)


def run_parts(parts: dict[str, tuple[str, list[str]]], suite: BenchSuite, **changed: Any) -> dict[str, Any]:
    """Parts, each a function and its arguments, in this process."""
    options = {option.name: option.default for option in suite.options}
    bench = PipelineBench({**options, "clients": 1, "warm_s": 0.5, "seconds": 0.5, **changed})
    try:
        found = {name: run_part(*part, bench, 200.0, 600.0) for name, part in parts.items()}
    finally:
        bench.close()
    assert not {name: part["error"] for name, part in found.items() if part["error"] or part["failures"]}
    return {"parts": found}


def whole_record() -> dict[str, Any]:
    """A run of all parts on a machine of four GPUs."""
    scale = SCALES["cuda"]
    closed = closed_loads(scale, 2.0, 4.0, max_tokens=512, texts=True)
    rate = {"requests_per_s": 100.0}
    fleets = {
        str(count): fleet([*closed, *([open_load(60_000, 2.0, 4.0)] if count == 4 else [])]) for count in (1, 2, 4)
    }
    parts: dict[str, Any] = {
        "alone": {
            "engine": dict.fromkeys(CLOSED[:4], rate),
            "sentence_transformers": dict.fromkeys(CLOSED[2:4], rate),
        },
        "fleet": {"batches": {"count": 1, "prediction_error_p95": 0.1}},
        "idle": {"cores": {"member 0": 0.01}},
        "closed": fleet(closed),
        "job": {"rows_per_s": 95.0},
        "open": fleet([open_load(rate_per_s, 2.0, 4.0) for rate_per_s in scale.rates_per_s]),
        "overload": {"in_time_share_of_peak": 0.9, "in_time_per_s": 90.0, "prediction_error_p95": 0.1},
        "kill": {
            "lost": 0.0,
            "recovery_s": 2.0,
            "killed_at_s": 2.0,
            "load": dataclasses.asdict(open_load(60.0, 2.0, 4.0)),
            "timeline": [{"at_s": 1.0, "p99_ms": 10.0, "lost": 0.0}, {"at_s": 2.0, "p99_ms": 20.0, "lost": 0.0}],
        },
        "drain": {"seconds": 1.0, "exit_codes": [0, 0]},
        "scale": fleets,
    }
    assert parts.keys() == PARTS.keys()
    return {**begin("pipeline", MACHINE, commit="abcdef0"), "parts": parts}


def fleet(loads: list[Load]) -> dict[str, Any]:
    """Records of loads, as a run has them."""
    return {"loads": dict(_records(loads))}


def _records(loads: list[Load]) -> Iterator[tuple[str, dict[str, Any]]]:
    for load in loads:
        begun = load.warm_s + 0.5
        calls = CallTimes.of([(begun, begun + latency_s, load.rows, 0) for latency_s in (0.1, 0.1, 0.1, 0.3)])
        cores = {"broker": 1.0, "member 0": 0.5, "member 1": 0.7, "client 0": 0.2}
        yield load.name, {"load": dataclasses.asdict(load), **figures(load, calls), "cores": cores}
