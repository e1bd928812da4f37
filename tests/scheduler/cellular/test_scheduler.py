"""Cellular batching for requests: when they join, run and leave, and in which order."""

import math
import random
import weakref
from dataclasses import replace

import numpy as np
import pytest

from penstock.scheduler.cellular import CellGraph, CellJob, CellRule, CellScheduler, CellTask
from penstock.scheduler.cellular.compiled import load_kernels
from penstock.scheduler.cellular.types import MAX_PASSES
from penstock.scheduler.types import Cause, Wait
from tests.scheduler.cellular.model import Model, graph_of, tree_of

LSTM = [CellRule("lstm", 4, max_steps=8)]
SEQ2SEQ = [CellRule("encoder", 4, 2), CellRule("decoder", 4, 2, priority=1)]


def chain(steps: int, cell: int = 0) -> CellGraph:
    return CellGraph.of_stages((cell, steps))


def task_of(model: Model) -> CellTask:
    task = model.poll()
    assert task is not None
    return task


def test_a_job_joins_the_next_task_and_leaves_with_its_last_step() -> None:
    model = Model(LSTM, max_tasks=1)
    model.add(chain(100))
    task_of(model)
    short = model.add(chain(1))
    assert model.finish() == []
    assert short in task_of(model).jobs
    assert model.finish() == [short]
    model.drain()


def test_a_chain_is_planned_again_while_its_task_runs() -> None:
    model = Model([CellRule("lstm", 1, max_steps=8)], max_tasks=2)
    job = model.add(chain(17))
    assert task_of(model).steps.tolist() == [8]
    assert task_of(model).steps.tolist() == [8]
    assert model.poll() is None
    assert model.finish() == []
    assert task_of(model).steps.tolist() == [1]
    assert model.finish() == []
    assert model.finish() == [job]


def test_a_node_is_planned_behind_a_task_with_the_last_steps_of_what_it_depends_on() -> None:
    model = Model([CellRule("leaf", 8), CellRule("inner", 8, priority=1)], max_tasks=3)
    model.add(tree_of(4))
    assert [task_of(model).cell for _ in range(3)] == [0, 1, 1]
    model.drain()


def test_a_task_names_the_jobs_that_begin_with_it() -> None:
    model = Model([CellRule("leaf", 8), CellRule("inner", 8, priority=1)], max_tasks=3)
    first, second = model.add(tree_of(4)), model.add(tree_of(4))
    assert [task_of(model).begun.tolist() for _ in range(2)] == [[first, second], []]
    model.drain()


def test_nodes_of_one_cell_do_not_run_with_what_they_depend_on() -> None:
    model = Model([CellRule("cell", 8)], max_tasks=8)
    model.add(graph_of([(0, 1, []), (0, 1, [0]), (0, 1, [0, 1])]))
    assert [task_of(model).nodes.tolist() for _ in range(3)] == [[0], [1], [2]]
    model.drain()


def test_a_chain_that_stops_ends_at_once_and_its_next_row_runs_no_step() -> None:
    model = Model(LSTM, max_tasks=2)
    job = model.add(chain(1000), stops={0: 1})
    task_of(model)
    assert task_of(model).jobs.tolist() == [job]
    assert model.finish() == [job]
    assert model.finish() == []
    model.drain()


def test_what_waits_for_a_chain_that_stops_may_run() -> None:
    model = Model(SEQ2SEQ)
    job = model.add(CellGraph.of_stages((0, 1000), (1, 2)), stops={0: 3})
    while not model.tasks or model.tasks[-1].cell == 0:
        task_of(model)
        if len(model.outstanding) == 2:
            model.finish()
    model.drain()
    assert model.left == [job]


def test_an_id_may_return_while_a_row_of_its_last_life_is_outstanding() -> None:
    scheduler = CellScheduler(LSTM)
    scheduler.add([CellJob(7, chain(9), 0.0)], 0.0)
    old = scheduler.poll(0.0)
    assert scheduler.cancel([7, 8]) == 1
    scheduler.add([CellJob(7, chain(1), 0.0)], 0.0)
    new = scheduler.poll(0.0)
    assert isinstance(old, CellTask)
    assert isinstance(new, CellTask)
    assert scheduler.finished(old.id, 0.0, old.steps, np.zeros(1, np.bool_), 1.0) == []
    assert scheduler.finished(new.id, 0.0, new.steps, np.zeros(1, np.bool_), 1.0) == [7]


@pytest.mark.slow
def test_a_deep_chain_of_nodes() -> None:
    model = Model([CellRule("cell", 4)], max_tasks=4)
    job = model.add(CellGraph.of_stages(*[(0, 1)] * 2000))
    model.drain()
    assert len(model.tasks) == 2000
    assert model.left == [job]


def test_trees_of_many_requests_share_tasks() -> None:
    model = Model([CellRule("leaf", 64), CellRule("inner", 64, priority=1)])
    for num_leaves in range(1, 30):
        model.add(tree_of(num_leaves))
    model.drain()
    assert len(model.tasks) < 25  # 29 trees of up to 5 levels, and 406 inner nodes


def test_tasks_end_in_the_order_in_which_they_were_planned() -> None:
    model = Model(LSTM)
    for _ in range(2):
        model.add(chain(20))
    first, second = task_of(model), task_of(model)
    with pytest.raises(ValueError, match=f"Task {second.id} is not the first"):
        model.scheduler.finished(second.id, 0.0, second.steps, np.zeros(2, np.bool_), 1.0)
    assert model.outstanding[0] is first
    model.drain()


def test_a_later_stage_goes_first() -> None:
    model = Model(SEQ2SEQ, max_tasks=1)
    for _ in range(4):
        model.add(CellGraph.of_stages((0, 2), (1, 2)))
    task_of(model)
    for _ in range(4):
        model.add(CellGraph.of_stages((0, 2), (1, 2)))
    model.finish()
    assert task_of(model).cell == 1
    model.drain()


def test_a_cell_type_without_an_outstanding_task_goes_before_one_that_has_one() -> None:
    model = Model(SEQ2SEQ)
    model.add(chain(20, cell=1))
    model.add(chain(20, cell=0))
    assert [task_of(model).cell, task_of(model).cell] == [1, 0]
    for cell in (1, 0):
        model.finish()
        assert task_of(model).cell == cell
    model.drain()


def test_a_low_priority_does_not_starve() -> None:
    """Though tasks of the high priority are always full."""
    model = Model(SEQ2SEQ, max_tasks=1)
    low = model.add(chain(1))
    cells = []
    for _ in range(MAX_PASSES + 1):
        for _ in range(4):
            model.add(chain(2, cell=1))
        cells.append(task_of(model).cell)
        model.finish()
    assert cells == [1] * MAX_PASSES + [0]
    assert low in model.left
    model.drain()


def test_jobs_without_deadlines_run_in_the_order_of_their_arrival() -> None:
    model = Model([CellRule("lstm", 2, max_steps=4)], max_tasks=1)
    chance = random.Random(1)
    jobs = [model.add(chain(chance.randint(1, 9))) for _ in range(30)]
    firsts: list[int] = []
    while model.jobs:
        firsts += [job for job in task_of(model).jobs.tolist() if job not in firsts]
        model.finish()
    assert firsts == jobs


def test_an_urgent_job_goes_first_but_overtakes_none_that_came_a_patience_earlier() -> None:
    model = Model([CellRule("lstm", 1)], max_tasks=1)
    patient = model.add(chain(1))
    model.now = 0.5
    urgent = model.add(chain(1), deadline=0.9)
    assert task_of(model).jobs.tolist() == [urgent]
    model.finish()
    model.now = 1.0
    late = model.add(chain(1), deadline=1.1)
    assert task_of(model).jobs.tolist() == [patient]
    model.finish()
    assert task_of(model).jobs.tolist() == [late]
    model.drain()


def test_a_job_waits_for_earlier_ones_only() -> None:
    """The bound of FIFO: a job of the oldest `max_rows` of its type is in every task of it."""
    model = Model(LSTM, max_tasks=1)
    old = [model.add(chain(30)) for _ in range(4)]
    for _ in range(20):
        model.add(chain(1))
        assert set(task_of(model).jobs.tolist()) <= set(old) or not set(old) <= set(model.jobs)
        model.finish()
    model.drain()


def test_a_job_that_exceeds_a_tasks_size_is_not_overtaken_by_smaller_ones() -> None:
    scheduler = CellScheduler([CellRule("encode", 8, max_size=10)], max_tasks=1)
    sizes = {0: 6, 1: 6, 2: 3, 3: 20, 4: 1}
    for job, size in sizes.items():
        scheduler.add([CellJob(job, chain(1), float(2 * job), size=size)], 2.0 * job)
    tasks = []
    while isinstance(task := scheduler.poll(10.0), CellTask):
        tasks.append(task.jobs.tolist())
        ones = np.ones(len(task.jobs), np.int32)
        scheduler.finished(task.id, 10.0, ones, ones > 0, 0.1)
    assert tasks == [[0], [1, 2], [3], [4]]


def test_bulk_fills_the_room_that_online_jobs_leave() -> None:
    model = Model(LSTM, max_tasks=1)
    bulk = [model.add(chain(9), bulk=True) for _ in range(4)]
    online = [model.add(chain(9)) for _ in range(3)]
    assert task_of(model).jobs.tolist() == [*online, bulk[0]]
    model.drain()


def test_bulk_work_of_another_cell_waits_for_online_work_but_does_not_starve() -> None:
    model = Model(SEQ2SEQ, max_tasks=1)
    for _ in range(4):
        model.add(chain(2, cell=1), bulk=True)
    online = model.add(chain(100))
    cells = []
    for _ in range(MAX_PASSES + 1):
        cells.append(task_of(model).cell)
        model.finish()
    assert cells == [0] * MAX_PASSES + [1]
    assert online in model.jobs
    model.drain()


def test_an_expired_job_leaves_at_the_next_step() -> None:
    model = Model(LSTM, max_tasks=1)
    begun = model.add(chain(20), deadline=5.0)
    other = model.add(chain(20))
    task_of(model)
    model.now = 5.0
    model.finish()
    plan = model.scheduler.poll(5.0)
    assert isinstance(plan, CellTask)
    assert plan.jobs.tolist() == [other]
    assert [(job.id, job.cause, job.late_s) for job in plan.rejected] == [(begun, Cause.QUEUED, 0.0)]


def test_a_job_that_comes_after_its_deadline_is_rejected() -> None:
    scheduler = CellScheduler(LSTM)
    (rejected,) = scheduler.add([CellJob(1, chain(1), 0.0, deadline=2.0)], 2.5)
    assert rejected == (1, Cause.ARRIVED_LATE, 0.5)
    assert scheduler.poll(2.5) == Wait(None)


def test_a_clock_that_steps_back_counts_as_no_time_elapsed() -> None:
    scheduler = CellScheduler(LSTM)
    scheduler.add([CellJob(1, chain(1), 10.0, deadline=12.0)], 10.0)
    assert isinstance(scheduler.poll(3.0), CellTask)
    assert scheduler.poll(3.0) == Wait(12.0)


def test_jobs_wait_for_state_slots_in_the_order_in_which_they_are_due() -> None:
    model = Model(LSTM, max_slots=4, max_tasks=1)
    first, large, small = model.add(chain(9), slots=2), model.add(chain(9), slots=3), model.add(chain(9))
    assert (model.scheduler.num_joined, model.scheduler.num_waiting) == (1, 2)
    joined = [set(_run_next(model)) for _ in range(20) if model.jobs]
    assert [jobs for place, jobs in enumerate(joined) if jobs not in joined[:place]] == [{first}, {large, small}]


def test_the_slots_of_a_cancelled_job_are_free_once_its_rows_have_ended() -> None:
    scheduler = CellScheduler(LSTM, max_slots=1)
    scheduler.add([CellJob(1, chain(9), 0.0), CellJob(2, chain(9), 0.0), CellJob(3, chain(9), 0.0)], 0.0)
    task = scheduler.poll(0.0)
    assert isinstance(task, CellTask)
    scheduler.cancel([1, 2])
    assert (scheduler.num_joined, scheduler.num_waiting) == (0, 1)
    scheduler.finished(task.id, 0.0, task.steps, np.zeros(1, np.bool_), 1.0)
    assert (scheduler.num_joined, scheduler.num_waiting) == (1, 0)


@pytest.mark.slow
def test_jobs_that_leave_while_they_wait_behind_a_full_pool_take_no_memory() -> None:
    scheduler = CellScheduler(LSTM, max_slots=1)
    scheduler.add([CellJob(0, chain(9), 0.0), CellJob(1, chain(9), 0.0)], 0.0)
    graphs = []
    for number in range(2, 5000):
        job = CellJob(number, chain(9), 0.0)
        graphs.append(weakref.ref(job.graph.cells))
        scheduler.add([job], 0.0)
        scheduler.cancel([number])
    del job
    assert scheduler.num_waiting == 1
    assert sum(graph() is not None for graph in graphs) <= 1002


def test_bulk_jobs_leave_slots_to_online_ones() -> None:
    scheduler = CellScheduler(LSTM, max_slots=8)
    scheduler.add([CellJob(number, chain(9), 0.0, bulk=True) for number in range(9)], 0.0)
    assert scheduler.num_joined == 6
    scheduler.add([CellJob(9, chain(9), 1.0)], 1.0)
    assert (scheduler.num_joined, scheduler.num_waiting) == (7, 3)


def test_a_bulk_job_of_more_than_the_bulk_share_runs_alone_beside_online_ones_and_others_follow() -> None:
    scheduler = CellScheduler(LSTM, max_slots=8, max_tasks=1)
    scheduler.add([CellJob(0, chain(100), 0.0)], 0.0)
    scheduler.add([CellJob(1, chain(2), 0.0, bulk=True, slots=7), CellJob(2, chain(2), 0.0, bulk=True)], 0.0)
    ended: list[int] = []
    for _ in range(4):
        task = scheduler.poll(0.0)
        assert isinstance(task, CellTask)
        ended += scheduler.finished(task.id, 0.0, task.steps, np.zeros(len(task.jobs), np.bool_), 1.0)
    assert ended == [1, 2]


def _run_next(model: Model) -> list[int]:
    """The jobs of the next task, which runs. The model does not know of slots."""
    task = model.scheduler.poll(model.now)
    assert isinstance(task, CellTask)
    is_stopped = np.zeros(len(task.jobs), np.bool_)
    for job_id in model.scheduler.finished(task.id, 0.0, task.steps, is_stopped, 1.0):
        del model.jobs[job_id]
    return task.jobs.tolist()  # type: ignore[no-any-return]  # numpy's list


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (CellJob(1, graph_of([]), 0.0), "A graph has nodes"),
        (CellJob(1, graph_of([(1, 1, [])]), 0.0), "A graph has nodes of known cells"),
        (CellJob(1, graph_of([(0, 0, [])]), 0.0), "with 1 step or more"),
        (CellJob(1, graph_of([(0, 1, [0])]), 0.0), "that depend on earlier nodes"),
        (CellJob(1, graph_of([(0, 1, [1]), (0, 1, [0])]), 0.0), "that depend on earlier nodes"),
        (CellJob(1, graph_of([(0, 1, [-2])]), 0.0), "that depend on earlier nodes"),
        (CellJob(1, replace(chain(1), steps=np.ones(2, np.int32)), 0.0), "A graph has nodes"),
        (CellJob(1, replace(chain(1), dependencies=np.full((2, 1), -1, np.int32)), 0.0), "A graph has nodes"),
        (CellJob(1, replace(chain(1), dependencies=np.zeros((1, 0), np.int32)), 0.0), "A graph has nodes"),
        (CellJob(1, chain(1), math.nan), "must be numbers"),
        (CellJob(1, chain(1), 0.0, deadline=math.nan), "must be numbers"),
        (CellJob(1, chain(1), 0.0, slots=5), "1 to 4 state slots"),
        (CellJob(0, chain(1), 0.0), "unique"),
    ],
)
def test_an_impossible_job_is_named_and_nothing_is_added(job: CellJob, message: str) -> None:
    scheduler = CellScheduler(LSTM, max_slots=4)
    scheduler.add([CellJob(0, chain(1), 0.0)], 0.0)
    with pytest.raises(ValueError, match=message):
        scheduler.add([CellJob(2, chain(1), 0.0), job], 0.0)
    assert scheduler.num_joined == 1


@pytest.mark.parametrize(("steps", "is_stopped"), [(9, False), (1, False), (-1, True), (9, True)])
def test_a_row_that_ran_other_steps_than_asked_changes_nothing(steps: int, is_stopped: bool) -> None:
    scheduler = CellScheduler([CellRule("lstm", 1, 4)])
    scheduler.add([CellJob(0, chain(4), 0.0)], 0.0)
    task = scheduler.poll(0.0)
    assert isinstance(task, CellTask)
    with pytest.raises(ValueError, match="as many steps as its task says"):
        scheduler.finished(task.id, 0.0, np.array([steps], np.int32), np.array([is_stopped]), 1.0)
    assert scheduler.finished(task.id, 0.0, task.steps, np.zeros(1, np.bool_), 1.0) == [0]


@pytest.mark.parametrize("field", ["max_tasks", "max_slots"])
def test_a_bad_argument_is_named(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        CellScheduler(LSTM, **{field: 0})  # type: ignore[arg-type]  # of either field


def test_the_kernels_were_compiled_once() -> None:
    """Other types of arrays or numbers would be compiled for anew, for seconds, when a task waits for it."""
    model = Model(SEQ2SEQ)
    for steps in (1, 5):
        model.add(CellGraph.of_stages((0, steps), (1, steps)), bulk=steps == 5, deadline=9)
    model.cancel(0)
    model.drain()
    assert [len(kernel.signatures) for kernel in vars(load_kernels()).values()] == [1] * 10
