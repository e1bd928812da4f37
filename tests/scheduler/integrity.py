"""Recounts of what the scheduler and its queues keep as sums. They assert, and take time for each queued sequence."""

from itertools import accumulate

import pytest

from penstock.scheduler import Scheduler
from penstock.scheduler.queueing.job_queue import Bounds, JobQueue


def check_scheduler(scheduler: Scheduler) -> None:
    check_queue(scheduler._online)
    check_queue(scheduler._bulk)


def check_queue(queue: JobQueue) -> None:
    """Order, sums, bounds, and the moment by which the lanes must begin."""
    jobs = list(queue)
    assert jobs == sorted(jobs)
    assert queue._by_number == {job.number: job for job in jobs}
    assert queue._job_of == {one: job.number for job in jobs for one in job.ids}
    assert all(len(job.ids) == len(job.lengths) > 0 and job.tokens == sum(job.lengths) for job in jobs)
    assert all(job.squares == sum(length**2 for length in job.lengths) for job in jobs)
    assert queue.tokens == sum(length for job in jobs for length in job.lengths)
    assert queue.squares == sum(length**2 for job in jobs for length in job.lengths)
    if jobs and queue._bounds is not None:
        assert queue._bounds == Bounds().with_jobs(jobs)
    ahead_s = list(accumulate([job.work_s for job in jobs], initial=0.0))
    assert queue.work_s == pytest.approx(ahead_s[-1], rel=1e-6, abs=1e-9)
    for before_s, job in zip(ahead_s, jobs, strict=False):
        assert queue._safe_begin + before_s <= job.latest_begin + 1e-6
    if queue._timeline is not None:
        latest = [job.latest_begin - before_s for before_s, job in zip(ahead_s, jobs, strict=False)]
        assert queue._timeline.tolist() == [pytest.approx(ahead_s[:-1], abs=1e-6), pytest.approx(latest, abs=1e-6)]
