"""The suite of generation runs all of its parts on a CPU, at tiny sizes, and counts the least that a step costs."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from penstock.ops.bench.cellular.generation_bench import MARIAN, StaticBatches, step_floor
from penstock.ops.bench.cellular.generation_tables import ratios
from penstock.ops.bench.common.runner import run_suite
from penstock.ops.bench.suites import GENERATION as SUITE
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.stepping.contract import StepJob


@pytest.mark.slow
def test_every_part_has_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_suite(SUITE, ["--device", "cpu", "--output", str(tmp_path)]) == 0
    (written,) = tmp_path.glob("generation/*/*.json")
    run = json.loads(written.read_text(encoding="utf-8"))
    assert len(ratios(run)) == 8
    assert all(part["error"] is None for part in run["parts"].values())
    for way in ("continuous", "static"):
        assert run["parts"][f"{way}_beams_4"]["result"]["2"]["requests_per_s"] > 0
        assert len(run["parts"]["arrivals_greedy"]["result"][way]) == 5
    assert "greedy: continuous over static at equal p99" in capsys.readouterr().out


def test_without_late_joins_a_batch_begins_when_the_one_before_has_ended() -> None:
    class Inner:
        """Ends its jobs one after another."""

        def __init__(self) -> None:
            self.jobs: list[StepJob] = []
            self.added: list[list[int]] = []

        @property
        def is_idle(self) -> bool:
            return not self.jobs

        def add(self, jobs: Sequence[StepJob]) -> None:
            self.jobs += jobs
            self.added.append([job.id for job in jobs])

        def advance(self, now: float) -> JobEvents:
            return JobEvents(finished=[(self.jobs.pop(0).id, np.zeros(0, np.float32))])

    inner = Inner()
    runner = StaticBatches(inner, 2)
    runner.add([StepJob(id, None, 0.0, None, False) for id in range(3)])
    while not runner.is_idle:
        runner.advance(0.0)
    assert inner.added == [[0, 1], [2]]


def test_a_part_that_failed_has_no_ratio_and_the_others_have_theirs() -> None:
    failed = {"error": "DeadlinePassed: not finished after 21 s", "result": None}
    figures = {"error": None, "result": {"4": {"requests_per_s": 30.0, "ratio": 4.0}}}
    names = ("continuous_greedy", "static_greedy", "step_greedy")
    parts = {**dict.fromkeys(names, figures), "arrivals_greedy": failed, "transformers_greedy": failed}
    assert ratios({"parts": parts}) == {
        "greedy: continuous over static": 1.0,
        "greedy: step over its floor": 4.0,
    }


def test_the_floor_of_a_step_counts_keys_of_beams_apart_and_of_their_source_once() -> None:
    (alone, flops), (more, _) = (step_floor(MARIAN, [past], [50], beams=1) for past in (10, 11))
    position = 2 * 2 * 6 * 512  # bytes of a key and a value in all layers
    assert more - alone == position
    assert step_floor(MARIAN, [10], [50], beams=4)[0] - alone == 30 * position
    weights = 6 * (6 * 512 * 512 + 2 * 512 * 2048) + 58_101 * 512
    assert alone == 2 * weights + 60 * position
    assert flops == 2 * weights + 4 * 6 * 512 * 60
