"""The cell runner: jobs join, fail, expire and leave."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
from structlog.testing import capture_logs

from penstock.engine.cells.contract import CellBatch, CellOutput, Tensors
from penstock.engine.cells.errors import CellFailed
from penstock.engine.errors import DeviceFailed
from penstock.scheduler.types import Cause
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.stepping.cell_runner import CellRunner
from penstock.worker.stepping.contract import StepJob
from tests.worker.stepping.cell_models import BREAKS, MODEL, RAISES, Bench, expected, holds


def test_a_job_is_answered_with_the_emissions_of_its_cells() -> None:
    bench = Bench()
    assert bench.runner.is_idle
    (job,) = bench.add([1, 2, 4])
    assert not bench.runner.is_idle
    bench.drain()
    assert bench.results == {job: [1, 3, 7, 3.5]}


def test_jobs_of_all_lengths_share_batches_and_each_leaves_at_its_last_step() -> None:
    bench = Bench(num_slots=40)
    jobs = [list(range(11, 11 + length)) for length in (1, 5, 2, 30, 7, 1, 3)] + [[4, 6, 99, 99, 99]]
    ids = bench.add(*jobs)
    (stats,) = [bench.advance().stats for _ in range(1)]
    assert stats is not None
    assert (stats.partition, stats.sums.count, stats.sums.longest) == ("add", 4, 4)
    assert stats.sums.tokens == 1 + 4 + 2 + 4
    bench.drain()
    assert bench.results == {id: expected(values) for id, values in zip(ids, jobs, strict=True)}
    assert list(bench.results).index(0) < list(bench.results).index(3)


def test_two_tasks_are_underway() -> None:
    bench = Bench()
    bench.add([11] * 30)
    bench.drain()
    assert bench.device.most_underway == 2


def test_quanta_grow_until_they_take_as_long_as_the_host() -> None:
    """A task of the engine takes 1 ms a step, and one of the host as long as the caller waits between two of them."""
    now = 0.0
    bench = Bench(clock=lambda: now)
    bench.device.changed = lambda output: replace(output, device_s=1e-3 * int(output.steps.max()))
    bench.add([11] * 100)
    quanta = []
    for host_s in [0.0] * 6 + [1.5e-3] * 6:
        now += host_s
        stats = bench.advance().stats
        assert stats is not None
        quanta.append(stats.sums.longest)
    assert quanta[:6] == [1] * 6
    assert quanta[-1] == 2


@pytest.mark.parametrize(("max_tasks", "quantum"), [(1, 1), (2, 4)])
def test_the_start_of_a_task_is_the_hosts_unless_it_computes(max_tasks: int, quantum: int) -> None:
    """A start takes 3 ms, and a step 1 ms. With one task outstanding, `start` is the device's work."""
    now = 0.0

    def start_error(batch: CellBatch) -> None:
        nonlocal now
        now += 3e-3

    bench = Bench(clock=lambda: now, max_tasks=max_tasks)
    bench.device.start_error = start_error
    bench.device.changed = lambda output: replace(output, device_s=1e-3 * int(output.steps.max()))
    bench.add([11] * 100)
    quanta = [stats.sums.longest for _ in range(12) if (stats := bench.advance().stats) is not None]
    assert quanta[-1] == quantum


def test_time_without_jobs_is_none_of_the_host() -> None:
    now = 0.0
    bench = Bench(clock=lambda: now)
    bench.device.changed = lambda output: replace(output, device_s=1e-3 * int(output.steps.max()))
    for _ in range(5):
        bench.add([11] * 2)
        bench.drain()
        now += 10.0
    assert {batch.quantum for batch in bench.device.started} == {1}


def test_jobs_wait_while_no_state_slot_is_free() -> None:
    bench = Bench(num_slots=3)
    jobs = [[11, 12, 13, 14, 15]] * 7
    ids = bench.add(*jobs)
    bench.drain()
    assert sorted(bench.results) == ids
    assert max(len(batch.steps) for batch in bench.device.started) == 2


def test_a_row_that_fails_ends_its_job_only() -> None:
    bench = Bench()
    good, bad, other = bench.add([11, 12], [11, RAISES, 13], [14, 15, 16])
    bench.drain()
    assert bench.results == {good: expected([11, 12]), other: expected([14, 15, 16])}
    assert list(bench.failed) == [bad]
    assert isinstance(bench.failed[bad], CellFailed)


def test_a_batch_that_its_engine_does_not_start_is_isolated() -> None:
    bench = Bench(num_slots=20)
    bench.device.start_error = holds(BREAKS)
    jobs = [[11, 12, 13, 14, 15], [11, BREAKS], [14, 15, 16], [12, 11, 11, 11, 11, BREAKS, 11], [10]]
    ids = bench.add(*jobs)
    bench.drain()
    assert bench.results == {ids[place]: expected(jobs[place]) for place in (0, 2, 4)}
    assert sorted(bench.failed) == [ids[1], ids[3]]
    assert all(isinstance(error.__cause__, RuntimeError) for error in bench.failed.values())


@pytest.mark.parametrize("num_bad", [1, 2, 4])
def test_jobs_of_a_lost_batch_begin_again_until_those_at_fault_are_alone(num_bad: int) -> None:
    bench = Bench(num_slots=20)
    bench.device.result_error = holds(BREAKS)
    jobs = [[11, BREAKS, 11]] * num_bad + [[11, 12, 13, 14, 15]] * (4 - num_bad) + [[12, 13]]
    ids = bench.add(*jobs)
    bench.drain()
    assert sorted(bench.failed) == ids[:num_bad]
    assert bench.results == {ids[place]: expected(jobs[place]) for place in range(num_bad, 5)}
    assert set(bench.runs.values()) <= {2, 3}  # with four rows, with two where these were even, and alone


def test_jobs_run_together_whose_handles_were_those_of_jobs_that_began_again() -> None:
    bench = Bench(num_slots=20)
    bench.device.result_error = holds(BREAKS)
    bench.add([11, BREAKS, 11], [11, 12, 13])
    bench.drain()
    bench.device.started.clear()
    bench.add([1, 2], [3, 4])
    bench.drain()
    assert {len(batch.steps) for batch in bench.device.started} == {2}


def test_a_job_is_not_blamed_for_one_that_had_left() -> None:
    """The cancelled job's row fails when its handle is a new job's."""
    bench = Bench(num_slots=20, clock=lambda: 0.0)
    bench.device.start_error = holds(BREAKS)
    _, cancelled = bench.add([11] * 40, [12, 13, BREAKS])
    bench.advance()
    bench.runner.cancel([cancelled])
    (bad,) = bench.add([11] * 7 + [BREAKS])
    bench.drain()
    assert list(bench.failed) == [bad]
    assert bench.runs == {bad: 2}  # with the other row, and alone


def test_a_failure_that_passes_is_retried_after_growing_pauses_and_nothing_fails() -> None:
    bench = Bench()
    errors: list[Exception] = [OSError("no route to the device")] * 3
    bench.device.start_error = lambda batch: errors.pop() if errors else None
    ids = bench.add([11, 12], [13, 14])
    bench.drain()
    assert bench.results == {ids[0]: expected([11, 12]), ids[1]: expected([13, 14])}
    assert len(bench.pauses) == 3
    assert 0.1 < bench.pauses[0] < bench.pauses[2] * 2 < 2.1
    assert len(bench.device.started) == 2  # a task of each cell: rows were not run one by one


def test_one_that_fails_as_if_it_might_pass_is_blamed_after_the_last_retry() -> None:
    bench = Bench()

    def error(batch: CellBatch) -> Exception | None:
        return OSError("this file is missing") if holds(BREAKS)(batch) else None

    bench.device.start_error = error
    good, bad = bench.add([11, 12], [11, BREAKS])
    bench.drain()
    assert bench.results == {good: expected([11, 12])}
    assert list(bench.failed) == [bad]
    assert len(bench.pauses) == 3
    assert bench.runs == {bad: 5}  # four times with the other, then alone


def test_a_lack_of_memory_halves_the_rows_of_a_step_and_nothing_fails() -> None:
    bench = Bench(num_slots=20)
    bench.device.start_error = lambda batch: MemoryError() if len(batch.steps) > 2 else None
    jobs = [[11, 12, 13, 14, 15, 16, 17, 18, 19]] * 4
    ids = bench.add(*jobs)
    with capture_logs() as logs:
        bench.drain()
    assert bench.results == {id: expected(values) for id, values in zip(ids, jobs, strict=True)}
    assert [event["event"] for event in logs].count("token_budget_halved") == 1
    assert [event["event"] for event in logs].count("batch_failed") == 1  # later tasks are small enough at once
    assert bench.pauses == []


def test_a_cell_that_raises_what_may_pass_is_retried_by_the_runner() -> None:
    bench = Bench()
    engine = bench.device.engine
    bench.runner = CellRunner(MODEL.specs, engine, pause=bench.pauses.append)
    failing = iter([True, True])
    cell = engine._cells["add"]

    def flaky(states: Tensors, inputs: Tensors) -> tuple[Tensors, Tensors]:
        if next(failing, False):
            raise ConnectionError("a feature store")
        return cell.step(states, inputs)

    engine._cells["add"] = replace(cell, step=flaky)
    (job,) = bench.add([11, 12])
    bench.drain()
    assert bench.results == {job: expected([11, 12])}
    assert len(bench.pauses) == 2


def test_emissions_that_are_not_numbers_fail_their_job_though_the_engine_does_not_look() -> None:
    bench = Bench()

    def spoil(output: CellOutput) -> CellOutput:
        half = output.emitted.get("half", np.zeros(0, np.float32))
        return replace(output, emitted={**output.emitted, "half": np.where(half == 11.5, np.float32(np.nan), half)})

    bench.device.changed = spoil
    good, bad = bench.add([11, 13], [11, 12])
    bench.drain()
    assert bench.results == {good: expected([11, 13])}
    assert list(bench.failed) == [bad]
    assert "NaN" in str(bench.failed[bad])


def test_an_engine_that_fails_on_clean_input_is_at_fault() -> None:
    bench = Bench()
    bench.device.start_error = lambda batch: OSError("no device")
    bench.add([11, 12], [13])
    with pytest.raises(OSError, match="no device"):
        bench.drain()
    assert bench.failed == {}


def test_an_engine_that_fails_on_long_quanta_is_at_fault() -> None:
    """Of other kernels, such as those of one step, a probe would prove nothing."""
    bench = Bench(num_slots=20)
    bench.device.start_error = lambda batch: RuntimeError("launch refused") if batch.quantum > 1 else None
    bench.add(*[[11, 12, 13, 14, 15]] * 4)
    with pytest.raises(RuntimeError, match="launch refused"):
        bench.drain()
    assert bench.failed == {}


@pytest.mark.parametrize("place", ["start_error", "result_error"])
def test_a_failed_device_is_not_blamed_on_jobs(place: str) -> None:
    bench = Bench()
    setattr(bench.device, place, lambda batch: DeviceFailed("the device failed"))
    bench.add([11, 12], [13])
    with pytest.raises(DeviceFailed):
        bench.drain()
    assert bench.failed == {}


def test_a_job_expires_before_its_first_step_or_between_steps() -> None:
    bench = Bench(num_slots=2)
    (begun,) = bench.add([11] * 30, deadline=5.0)
    (waiting,) = bench.add([11], deadline=5.0)
    (patient,) = bench.add([12])
    assert bench.advance().started == [begun]
    bench.now = 6.0
    (late,) = bench.add([11], deadline=5.5)
    bench.drain()
    assert [job.id for job in bench.expired] == [late, begun, waiting]
    assert [job.cause for job in bench.expired] == [Cause.ARRIVED_LATE, Cause.QUEUED, Cause.QUEUED]
    assert bench.results == {patient: expected([12])}


def test_a_job_that_came_too_late_is_told_by_the_next_advance() -> None:
    bench = Bench()
    bench.now = 6.0
    (late,) = bench.add([11], deadline=5.5)
    assert not bench.runner.is_idle
    bench.drain()
    assert [job.id for job in bench.expired] == [late]


def test_a_job_that_came_too_late_and_is_cancelled_ends_once() -> None:
    bench = Bench()
    bench.now = 6.0
    bench.runner.cancel(bench.add([11], deadline=5.5))
    bench.drain()
    assert bench.expired == []


def test_a_cancelled_job_leaves_before_its_next_step_and_frees_its_slot() -> None:
    bench = Bench(num_slots=2)
    (begun,) = bench.add([11] * 1000)
    (waiting,) = bench.add([12] * 1000)
    (patient,) = bench.add([13])
    bench.advance()
    bench.runner.cancel([begun, waiting, 99])
    bench.runner.check_integrity()
    bench.drain()
    assert bench.results == {patient: expected([13])}
    assert len(bench.device.started) <= 4


def test_nothing_is_kept_of_jobs_that_have_ended() -> None:
    bench = Bench(num_slots=4)
    bench.device.start_error = holds(BREAKS)
    works = [bench.checks.work({"values": values}) for values in ([11] * 30, [12], [BREAKS], [RAISES], [13] * 9)]
    graphs = [weakref.ref(work.graph) for work in works]
    bench.runner.add([StepJob(number, work, 0.0, 4.0, False) for number, work in enumerate(works)])
    del works
    bench.advance()
    bench.runner.cancel([4])
    bench.now = 5.0
    bench.drain()
    bench.failed.clear()  # an error's traceback holds what it came from
    gc.collect()
    assert [graph() for graph in graphs] == [None] * 5


def test_an_idle_runner_has_nothing_to_tell() -> None:
    bench = Bench()
    bench.runner.add([])
    assert bench.runner.advance(1.0) == JobEvents(started=[], expired=[])
    assert bench.runner.is_idle


def test_work_of_another_type_is_a_bug() -> None:
    bench = Bench()
    with pytest.raises(TypeError, match="This is a bug"):
        bench.runner.add([StepJob(0, "text", 0.0, None, False)])
    assert bench.runner.is_idle
