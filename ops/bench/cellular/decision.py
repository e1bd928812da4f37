"""Cost of a decision of the cellular scheduler on its host.

python -m penstock.ops.bench.cellular.decision
"""

import itertools
import time
from typing import NamedTuple

import numpy as np

from penstock.scheduler.cellular import CellGraph, CellJob, CellRule, CellScheduler, CellSettings, CellTask
from penstock.worker.garbage_collection import calm_garbage_collection

_WARM_UP = 100
_MEAN_STEPS, _MAX_STEPS = 24, 330


class DecisionCost(NamedTuple):
    """Median microseconds of a saturated scheduler."""

    num_active: int
    num_rows: int  # of each task
    num_ended: float  # jobs that end with a task, and are replaced
    poll_us: float  # to plan a task
    finished_us: float  # to end one
    add_us: float  # for each job that is added

    @property
    def decision_us(self) -> float:
        """To end a task and plan the next."""
        return self.poll_us + self.finished_us


def measure_decision(num_active: int = 2048, max_rows: int = 512, num_decisions: int = 1000) -> DecisionCost:
    """Time decisions over chains of log-normal lengths, with as many active jobs all the time."""
    scheduler = CellScheduler([CellRule("lstm", max_rows, max_steps=4)], CellSettings())
    chance = np.random.default_rng(0)
    lengths = np.clip(chance.lognormal(np.log(_MEAN_STEPS) - 0.25, 0.7, 1 << 16), 1, _MAX_STEPS).astype(int)
    graphs = {length: CellGraph.of_stages((0, length)) for length in set(lengths.tolist())}
    endless = enumerate(itertools.cycle(lengths.tolist()))
    jobs = (CellJob(number, graphs[length], float(number)) for number, length in endless)
    times = np.zeros((3, num_decisions))
    num_ended = np.zeros(num_decisions)
    scheduler.add([next(jobs) for _ in range(num_active)], 0.0)
    task = scheduler.poll(0.0)
    for number in range(-_WARM_UP, num_decisions):
        began = time.perf_counter()
        following = scheduler.poll(0.0)
        planned = time.perf_counter()
        assert isinstance(task, CellTask)
        is_stopped = np.zeros(len(task.jobs), np.bool_)
        told = time.perf_counter()
        ended = scheduler.finished(task.id, 0.0, task.steps, is_stopped, 1e-4)
        done = time.perf_counter()
        fresh = [next(jobs) for _ in ended]
        made = time.perf_counter()
        scheduler.add(fresh, 0.0)
        added = time.perf_counter()
        task = following
        if number >= 0:
            times[:, number] = planned - began, done - told, (added - made) / max(1, len(ended))
            num_ended[number] = len(ended)
    return DecisionCost(num_active, max_rows, float(num_ended.mean()), *(np.median(times, axis=1) * 1e6).tolist())


def main() -> None:
    """Print the cost for several numbers of active jobs."""
    calm_garbage_collection()
    for num_active in (64, 512, 2048, 8192):
        cost = measure_decision(num_active)
        print(
            f"{num_active:5} active: {cost.decision_us:5.1f} us a decision (plan {cost.poll_us:.1f}, end "
            f"{cost.finished_us:.1f}), {cost.add_us:.2f} us a job; {cost.num_ended:.0f} jobs end with a task"
        )


if __name__ == "__main__":
    main()
