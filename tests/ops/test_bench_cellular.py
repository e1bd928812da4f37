"""The evaluation of cellular batching: what its driver counts, and that all policies compute the same results."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from penstock.engine.gpu.cells import lstm as fused
from penstock.ops.bench.cellular import evaluation as evaluation_module
from penstock.ops.bench.cellular import workloads
from penstock.ops.bench.cellular.cellular_tables import AGENDA, DEPTH, GRAPH, NN_LSTM, OURS, PADDING
from penstock.ops.bench.cellular.contestants import Contestant, Tried, contestants
from penstock.ops.bench.cellular.evaluation import CellularBench, Evaluation, Sizes
from penstock.ops.bench.cellular.load import MAX_IN_FLIGHT, Clock, Driver, Offered, throughput
from penstock.ops.bench.cellular.nn_lstm import offline_requests_per_s
from penstock.ops.bench.cellular.policies import GraphBatching, depths, depths_results_last
from penstock.ops.bench.cellular.workloads import (
    WORKLOADS,
    Shape,
    Workload,
    padded_work,
    parse_trees,
    wmt_like_lengths,
)
from penstock.ops.bench.common.part_bench import DeadlinePassed
from penstock.ops.bench.common.runner import run_suite
from penstock.ops.bench.common.runs import Run
from penstock.ops.bench.common.verdicts import targets
from penstock.ops.bench.suites import CELLULAR as SUITE
from penstock.scheduler.cellular import CellGraph, CellJob, CellRule, CellTask
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.stepping.contract import StepJob
from tests.engine.gpu import lstm_reference
from tests.engine.gpu.host_engine import HostEngine

CPU = torch.device("cpu")
SHAPE = Shape(hidden=8, vocabulary=600, requests=24, max_rows=8, max_slots=256, dtype=torch.float32, device=CPU)
TRIED = Tried(rows=(8,), quanta=(4,), widths=(10,), trees=(4,))
NOTHING = np.zeros(0, np.float32)


class VirtualClock:
    """Time that passes only where a test says so."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def wait_until(self, moment: float) -> None:
        assert moment >= self.time
        self.time = moment


class OneByOne:
    """A runner that serves one request after another, each for `service_s`."""

    def __init__(self, clock: VirtualClock, service_s: float, *, repeats: bool = False) -> None:
        self._clock, self._service_s, self._repeats = clock, service_s, repeats
        self.jobs: list[StepJob] = []
        self.added: list[StepJob] = []

    @property
    def is_idle(self) -> bool:
        return not self.jobs

    def add(self, jobs: Sequence[StepJob]) -> None:
        self.jobs += jobs
        self.added += jobs

    def advance(self, now: float) -> JobEvents:
        assert now == self._clock.time
        self._clock.time += self._service_s
        job = self.jobs[0] if self._repeats else self.jobs.pop(0)
        return JobEvents(finished=[(job.id, NOTHING)])


def test_latencies_count_from_the_scheduled_arrival_however_late_the_driver_is() -> None:
    """Ten requests come within a second that the runner spends on the first: none of them is left out or moved."""
    clock = VirtualClock()
    runner = OneByOne(clock, 1.0)
    arrivals = np.linspace(0.0, 0.9, 10)
    offered = Driver(runner, ["a", "b", "c"], clock).offer(arrivals)
    assert [job.id for job in runner.added] == list(range(10))
    assert [job.arrival for job in runner.added] == pytest.approx(100 + arrivals)
    assert [job.work for job in runner.added] == list("abcabcabca")
    assert offered.ends - offered.arrivals == pytest.approx([1 + 0.9 * place for place in range(10)])


def test_an_idle_driver_waits_for_the_next_arrival() -> None:
    clock = VirtualClock()
    offered = Driver(OneByOne(clock, 0.5), ["a"], clock).offer(np.array([0.0, 10.0, 20.0]))
    assert offered.ends - offered.arrivals == pytest.approx([0.5, 0.5, 0.5])
    assert offered.ended == 120.5


def test_an_overloaded_runner_is_given_as_many_requests_as_a_worker_takes_in() -> None:
    clock, most = VirtualClock(), 0

    class Counted(OneByOne):
        def add(self, jobs: Sequence[StepJob]) -> None:
            nonlocal most
            super().add(jobs)
            most = max(most, len(self.jobs))

    runner = Counted(clock, 0.1)
    offered = Driver(runner, ["a"], clock).offer(np.zeros(MAX_IN_FLIGHT + 50))
    assert most == MAX_IN_FLIGHT
    assert [job.id for job in runner.added] == list(range(MAX_IN_FLIGHT + 50))
    assert offered.ends - offered.arrivals == pytest.approx(0.1 * np.arange(1, MAX_IN_FLIGHT + 51))


def test_a_closed_loop_keeps_as_many_requests_in_flight_and_ends_all() -> None:
    clock = VirtualClock()
    runner = OneByOne(clock, 1.0)
    offered = Driver(runner, ["a"], clock).saturate(in_flight=4, seconds=10.0)
    assert len(offered.ends) == 4 + 9  # each that ends before the time is up is replaced
    assert not np.isnan(offered.ends).any()
    assert offered.ends[4:] - offered.arrivals[4:] == pytest.approx([4.0] * 9)


def test_a_request_that_ends_twice_is_an_error() -> None:
    clock = VirtualClock()
    with pytest.raises(RuntimeError, match="Request 0 ended twice"):
        Driver(OneByOne(clock, 1.0, repeats=True), ["a"], clock).offer(np.array([0.0, 0.1]))


def test_a_request_that_is_lost_is_an_error() -> None:
    clock = VirtualClock()
    runner = OneByOne(clock, 1.0)
    runner.add = lambda jobs: None  # type: ignore[method-assign]  # loses them
    with pytest.raises(RuntimeError, match="1 requests have not ended"):
        Driver(runner, ["a"], clock).offer(np.array([0.0]))


def test_throughput_does_not_depend_on_where_a_batch_of_ends_falls() -> None:
    """Four requests end each second, at once."""
    offered = Offered(np.zeros(40), np.repeat(np.arange(1.0, 11.0), 4), 0.0, 10.0)
    assert throughput(offered, 2.5, 6.5) == throughput(offered, 2.9, 6.9) == 4.0
    assert throughput(offered, 2.9, 3.1) == 4.0  # one batch: the whole load counts


def made(name: str, shape: Shape = SHAPE) -> Workload:
    return WORKLOADS[name](shape, 3)


def results_of(workload: Workload, contestant: Contestant) -> dict[int, list[float]]:
    """Results of all requests of the pool, given at once."""
    runner = contestant.make()
    runner.add([StepJob(i, work, 100.0, None, False) for i, work in enumerate(contestant.works)])
    found: dict[int, list[float]] = {}
    while not runner.is_idle:
        for job_id, result in runner.advance(100.0).finished:
            assert job_id not in found
            found[job_id] = result.tolist()
    return found


def test_trees_have_the_same_scores_by_every_policy() -> None:
    workload = made("tree")
    every = contestants(workload, TRIED)
    assert [contestant.name for contestant in every] == [OURS, DEPTH, AGENDA]
    ours, *others = [results_of(workload, contestant) for contestant in every]
    assert ours.keys() == set(range(SHAPE.requests))
    for results in others:
        for number, scores in ours.items():
            assert results[number] == pytest.approx(scores, abs=1e-5)


def test_every_way_ends_every_sentence() -> None:
    workload = made("lstm")
    every = contestants(workload, TRIED)
    assert [contestant.name for contestant in every] == [OURS, PADDING, GRAPH, NN_LSTM]
    for contestant in every:
        assert results_of(workload, contestant).keys() == set(range(SHAPE.requests))


def test_padded_requests_run_to_the_end_of_their_bucket() -> None:
    for work in made("lstm").works:
        longer, steps = padded_work(work, 10), int(work.graph.steps[0])
        assert longer.cell_graph.steps.tolist() == [-(-steps // 10) * 10]
        tokens = longer.graph.inputs["token"].values
        assert tokens[:steps].tolist() == work.graph.inputs["token"].values.tolist()
        assert len(tokens) == longer.graph.steps[0]


def test_depths_are_those_of_the_longest_paths() -> None:
    """Nodes 0 and 1 are leaves, 2 merges them, 3 is another leaf, 4 merges 2 and 3, 5 classifies."""
    dependencies = [[-1, -1], [-1, -1], [0, 1], [-1, -1], [2, 3], [4, -1]]
    graph = CellGraph(*(np.array(values, np.int32) for values in ([0, 0, 1, 0, 1, 2], [1] * 6, dependencies)))
    assert depths(graph).tolist() == [1, 1, 2, 1, 3, 4]
    assert depths_results_last(graph).argsort(kind="stable").tolist() == [0, 1, 3, 2, 4, 5]
    assert depths_results_last(graph)[5] > 1000


def test_the_next_batch_of_requests_is_planned_behind_the_last_task_of_the_one_before() -> None:
    """So the device does not idle between two batches. A third task waits."""
    policy = GraphBatching([CellRule("a", 4, max_steps=8)], max_jobs=2)
    policy.add([CellJob(number, CellGraph.of_stages((0, 8)), 0.0) for number in range(4)], 0.0)
    first, second = policy.poll(0.0), policy.poll(0.0)
    assert isinstance(first, CellTask)
    assert isinstance(second, CellTask)
    assert (first.jobs.tolist(), second.jobs.tolist()) == ([0, 1], [2, 3])
    assert not isinstance(policy.poll(0.0), CellTask)
    is_stopped = np.zeros(2, np.bool_)
    assert policy.finished(first.id, 0.0, first.steps, is_stopped, 1.0) == [0, 1]
    assert policy.finished(second.id, 0.0, second.steps, is_stopped, 1.0) == [2, 3]


def test_lengths_are_those_that_are_stated() -> None:
    lengths = wmt_like_lengths(100_000, 1)
    assert lengths.mean() == pytest.approx(24, abs=0.2)
    assert 250 < lengths.max() <= 330
    assert lengths.min() >= 1


def test_trees_have_the_sizes_that_are_stated() -> None:
    trees = parse_trees(5000, 1)
    words = np.array([len(tree) + 1 for tree in trees])
    assert words.mean() == pytest.approx(19.1, abs=0.7)
    assert (words.min(), words.max()) == (2, pytest.approx(52, abs=4))
    for tree in trees[:50]:
        children = [child for merge in tree for child in merge]
        assert sorted(children) == list(range(2 * len(tree)))  # each node but the root has one parent
        assert all(max(merge) < len(tree) + 1 + place for place, merge in enumerate(tree))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_runs_in_the_frame_of_the_gpu_in_half_precision(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernels' references, on the CPU."""
    for kernel in ("lstm_begin", "lstm_step", "short_lstm_step"):
        monkeypatch.setattr(fused, kernel, getattr(lstm_reference, kernel))
    monkeypatch.setattr(workloads, "_on_device", lambda cell, shape: fused.fused(cell))
    monkeypatch.setattr(workloads, "_engine", lambda shape, cells: HostEngine(cells, shape.max_slots + 1))
    workload = made(name, replace(SHAPE, dtype=torch.float16))
    for contestant in contestants(workload, TRIED):
        assert results_of(workload, contestant).keys() == set(range(SHAPE.requests))


def test_an_evaluation_has_all_figures_of_the_targets() -> None:
    parts = {name: evaluation(math.inf).run(contestants(made(name), TRIED)) for name in WORKLOADS}
    parts["lstm"]["offline"] = {"requests_per_s": 1.0}
    for part in parts.values():
        assert part["skipped"] == []
    record = {"parts": {name: {"result": part} for name, part in parts.items()}, "machine": {"gpu": "none"}}
    text = SUITE.shown(Run(Path(), record))
    for target in targets("cellular"):
        assert f"| {target.measure} | " in text
    for contestant in (OURS, PADDING, GRAPH, NN_LSTM.replace(",", ""), DEPTH, AGENDA):
        assert f"| {contestant} | " in text


class ServiceClock:
    """Each look at it takes a millisecond: so the driver's turns have a length that nothing else decides."""

    def __init__(self) -> None:
        self._time = 0.0

    def now(self) -> float:
        self._time += 1e-3
        return self._time

    def wait_until(self, moment: float) -> None:
        self._time = max(self._time, moment)


def evaluation(ends: float, seconds: float = 0.5, clock: Clock | None = None) -> Evaluation:
    return Evaluation(Sizes(SHAPE, {}, seconds, 32, 0, 0), 1, clock or ServiceClock(), ends)


def test_requests_of_the_warm_up_are_not_counted_and_half_of_saturation_is_offered() -> None:
    clock = VirtualClock()
    one = Contestant(OURS, {}, ["a"], lambda: OneByOne(clock, 0.1))
    results = evaluation(math.inf, 100.0, clock).run([one])
    assert results["peaks"][0]["requests_per_s"] == pytest.approx(10.0)
    (half,) = results["at_half"]
    assert half["offered_per_s"] == pytest.approx(5.0)
    assert half["counted"] == pytest.approx(400, abs=40)
    assert 100.0 <= half["latency_ms"]["p50"] < half["latency_ms"]["p99"]


def test_loads_are_skipped_once_the_time_is_up() -> None:
    workload = made("tree")
    results = evaluation(-math.inf).run(contestants(workload, TRIED))
    assert results["peaks"] == results["at_half"] == []
    assert len(results["skipped"]) >= 3


def test_sentences_that_are_known_before_are_run_by_nn_lstm() -> None:
    model = made("lstm").lstm
    assert model is not None
    assert offline_requests_per_s(model, [np.array(tokens, np.int32) for tokens in ([1, 2, 3], [4], [5, 6])], 2) > 0


def test_what_was_measured_before_the_deadline_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def passed(*_: object) -> None:
        raise DeadlinePassed("not finished after 120 s")

    monkeypatch.setattr(evaluation_module, "poisson", passed)
    bench = CellularBench({"device": "cpu", "seed": 1})
    bench.sizes = Sizes(SHAPE, {"tree": TRIED}, 0.02, 32, 0, 0)
    part = evaluation_module.run(bench, "tree")
    assert len(part["peaks"]) == 3
    assert part["at_half"] == []
    assert bench.failures["the load underway"]["error"] == "not finished after 120 s"


@pytest.mark.slow
def test_the_command_keeps_a_run_and_prints_its_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_suite(SUITE, ["tree", "--device", "cpu", "--output", str(tmp_path)]) == 0
    (file,) = tmp_path.glob("cellular/*/*.json")
    assert json.loads(file.read_text(encoding="utf-8"))["parts"]["tree"]["error"] is None
    assert "| depth-based | " in capsys.readouterr().out
