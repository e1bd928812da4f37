"""The thread of a runner: jobs in, events out, errors told, and an end that does not wait for the jobs."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.engine.types import ModelInfo
from penstock.worker.batching.dispatcher import Dispatcher
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.batching.stage import StageCallbacks
from penstock.worker.requests.sequence_block import SequenceBlock
from penstock.worker.resolved_settings import resolve
from penstock.worker.settings import WorkerSettings
from penstock.worker.stepping import step_model
from penstock.worker.stepping.contract import StepJob
from penstock.worker.stepping.step_model import StepModel
from penstock.worker.stepping.step_thread import StepThread
from tests.worker.batching.small_engine import POISON
from tests.worker.conftest import MakeSequences
from tests.worker.stepping.manual import CountingRunner


class Gate(CountingRunner):
    """Takes a turn when the test lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.may_run = threading.Event(), threading.Event()
        self.may_run.set()

    def advance(self, now: float) -> JobEvents:
        self.began.set()
        assert self.may_run.wait(60)
        return super().advance(now)


def ids(sequence: SequenceBlock) -> list[int]:
    found: list[int] = sequence.token_ids.tolist()
    return found


def job(number: int, steps: int) -> StepJob:
    return StepJob(number, [steps, number], 0.0, None, False)


async def test_jobs_join_and_leave_while_others_run() -> None:
    events: asyncio.Queue[JobEvents] = asyncio.Queue()
    runner = Gate()
    thread = StepThread(runner, ids)
    thread.start(events.put_nowait, lambda error: pytest.fail(repr(error)))
    runner.may_run.clear()
    thread.put([job(0, 3)])
    assert await asyncio.to_thread(runner.began.wait, 60)
    thread.put([job(1, 1), job(2, 10**9)])  # the event loop does not wait for the turn under way
    runner.may_run.set()
    seen: list[int] = []
    async with asyncio.timeout(300):
        while len(seen) < 2:
            seen += [number for number, _ in (await events.get()).finished]
        thread.cancel([2])
        thread.put([job(3, 1)])
        while len(seen) < 3:
            seen += [number for number, _ in (await events.get()).finished]
    assert sorted(seen) == [0, 1, 3]
    assert runner.is_idle
    assert await thread.close(60.0)


class Resting(Gate):
    """Has pieces of idle work."""

    def __init__(self, pieces: int, error: Exception | None = None) -> None:
        super().__init__()
        self.num_left, self.error = pieces, error
        self.rested = threading.Event()

    def idle(self) -> bool:
        assert self.is_idle
        if self.num_left == 0:
            self.rested.set()
            if self.error is not None:
                raise self.error
            return False
        self.num_left -= 1
        return True


@pytest.mark.parametrize("error", [None, RuntimeError("a capture failed")], ids=repr)
async def test_idle_work_is_done_while_no_job_is_there(error: Exception | None) -> None:
    events: asyncio.Queue[JobEvents] = asyncio.Queue()
    runner = Resting(3, error)
    thread = StepThread(runner, ids)
    thread.start(events.put_nowait, lambda error: pytest.fail(repr(error)))
    async with asyncio.timeout(300):
        assert await asyncio.to_thread(runner.rested.wait, 60)
        assert (runner.num_left, runner.batches) == (0, [])
        for number in range(2):
            runner.num_left = 2
            thread.put([job(number, 1)])
            assert [done for done, _ in (await events.get()).finished] == [number]
    assert await thread.close(60.0)


async def test_an_error_of_the_runner_ends_the_thread_and_is_told() -> None:
    errors: asyncio.Queue[BaseException] = asyncio.Queue()
    runner = CountingRunner()
    runner.broken = True
    thread = StepThread(runner, ids)
    thread.start(lambda events: None, errors.put_nowait)
    thread.put([job(0, 3)])
    async with asyncio.timeout(300):
        assert repr(await errors.get()) == repr(ValueError("a bug of the runner"))
    assert await thread.close(60.0)
    assert not thread.is_running


async def test_the_end_waits_for_the_turn_under_way_and_no_longer_than_told() -> None:
    runner = Gate()
    thread = StepThread(runner, ids)
    thread.start(lambda events: None, lambda error: None)
    runner.may_run.clear()
    thread.put([job(0, 1000)])
    assert await asyncio.to_thread(runner.began.wait, 60)
    assert not await thread.close(0.01)
    runner.may_run.set()
    assert await thread.close(60.0)
    assert not runner.is_idle


async def test_the_thread_ends_with_its_dispatcher(make_sequences: MakeSequences) -> None:
    """As when the engine is given up: nothing more is computed."""
    runner = Gate()
    thread = StepThread(runner, ids)
    callbacks = StageCallbacks(lambda stats: None, lambda got, stats: None, lambda _: None, lambda error: None)
    dispatcher = Dispatcher(thread, callbacks)
    thread.start(dispatcher.on_events, dispatcher.give_up)
    dispatcher.add(make_sequences([10**9, 1]))
    assert await asyncio.to_thread(runner.began.wait, 60)
    dispatcher.close()
    await asyncio.to_thread(thread._thread.join, 60)
    assert not thread.is_alive


async def test_a_thread_that_was_not_started_ends_at_once() -> None:
    assert await StepThread(CountingRunner(), ids).close(1.0)


@pytest.fixture
async def served(info: ModelInfo, monkeypatch: pytest.MonkeyPatch) -> tuple[StepModel, Gate, list[Any]]:
    """A model on a thread, its runner, and the results that it reports."""
    monkeypatch.setattr(step_model, "IDLE_S", 0.0)
    for bound in ("PROBE_S", "LOOP_S"):  # no stall of the machine is a fault
        monkeypatch.setattr(step_model, bound, 60.0)
    runner, results = Gate(), list[Any]()
    model = StepModel(info, runner, ids, [1, 7])
    callbacks = StageCallbacks(
        lambda stats: None, lambda got, stats: results.extend(got), lambda _: None, results.append
    )
    model.stage(resolve(WorkerSettings.model_validate({"model": "null"}), info), callbacks)
    return model, runner, results


async def rested(model: StepModel, num_turns: int) -> None:
    """Until so many turns have ended, the last of them idle work."""
    async with asyncio.timeout(300):
        while model._thread.num_turns < num_turns or model._thread.is_running:  # noqa: ASYNC110 -- it sends no event
            await asyncio.sleep(0)


async def test_a_probe_runs_on_an_idle_runner_and_is_no_result(served: tuple[StepModel, Gate, list[Any]]) -> None:
    model, runner, results = served
    await rested(model, 1)
    assert await asyncio.to_thread(model.fault) == ""
    assert (runner.batches, results) == ([[-1]], [])
    assert await model.close(60.0)
    assert await asyncio.to_thread(model.fault) == ""


async def test_a_turn_that_takes_long_is_no_idle_engine_that_hangs(
    served: tuple[StepModel, Gate, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, runner, _ = served
    monkeypatch.setattr(step_model, "PROBE_S", 0.05)
    runner.may_run.clear()
    model._thread.put([StepJob(5, [1, 7], 0.0, None, False)])
    assert await asyncio.to_thread(runner.began.wait, 60)
    assert await asyncio.to_thread(model.fault) == ""
    runner.may_run.set()
    assert await model.close(60.0)


async def test_a_probe_tells_a_runner_that_fails_and_one_that_hangs(
    served: tuple[StepModel, Gate, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, runner, _ = served
    await rested(model, 1)
    model._probe = [POISON]
    assert "the idle engine fails on one step" in await asyncio.to_thread(model.fault)
    await rested(model, 4)  # idle work, the job added, its step, idle work
    model._probe = [1]
    monkeypatch.setattr(step_model, "PROBE_S", 0.05)
    runner.may_run.clear()
    assert await asyncio.to_thread(model.fault) == "the idle engine has not run one step for 0.05 s"
    runner.may_run.set()
    assert await model.close(60.0)


async def test_the_watchdog_sees_a_runner_that_hangs_while_it_takes_jobs() -> None:
    class Stuck(Gate):
        def add(self, jobs: Sequence[StepJob]) -> None:
            self.began.set()
            assert self.may_run.wait(60)
            super().add(jobs)

    runner = Stuck()
    runner.may_run.clear()
    thread = StepThread(runner, ids)
    thread.start(lambda events: None, lambda error: pytest.fail(repr(error)))
    thread.put([job(0, 1)])
    assert await asyncio.to_thread(runner.began.wait, 60)
    [turn] = thread.running()
    runner.may_run.set()
    assert await thread.close(60)
    assert thread.running() == []
    assert thread.num_turns != turn.key
