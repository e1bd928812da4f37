"""The jobs of a dispatcher as a step runner takes them."""

from collections.abc import Callable, Sequence
from itertools import count

from penstock.scheduler.types import RejectedJob
from penstock.worker.batching.batch import BatchStats, Sums
from penstock.worker.batching.flights import Flight
from penstock.worker.batching.job_runner import JobEvents
from penstock.worker.batching.watchdog import WorkUnderway
from penstock.worker.requests.sequence_block import SequenceBlock
from penstock.worker.stepping.contract import StepEvents, StepJob
from penstock.worker.stepping.step_thread import StepThread


class StepJobs:
    """Implements `JobRunner` with a step runner on its thread. The caller hands the dispatcher `events` of each turn.

    The runner has jobs, and those that leave, before its next turn. It rejects what it does not admit by an event.
    """

    by_step = True

    def __init__(self, thread: StepThread, work_of: Callable[[SequenceBlock], object]) -> None:
        """`work_of` makes the runner's input for a sequence."""
        self._thread = thread
        self._work_of = work_of
        self._numbers = count(1)

    def add(self, flights: Sequence[Flight]) -> Sequence[RejectedJob]:
        """See `JobRunner`."""
        jobs = [self._job(flight) for flight in flights]
        if replaced := [flight.former.job_id for flight in flights if flight.former is not None]:
            self._thread.cancel(replaced)
        self._thread.add(jobs)
        return ()

    def cancel(self, ids: Sequence[int]) -> None:
        """See `JobRunner`."""
        self._thread.cancel(ids)

    def advance(self) -> None:
        """See `JobRunner`. The thread begins what it can by itself."""

    def drain(self) -> None:
        """See `JobRunner`. No step waits for more jobs."""

    def resume(self) -> None:
        """See `JobRunner`."""

    def running(self) -> list[WorkUnderway]:
        """See `JobRunner`: the turn under way, if there is one."""
        return self._thread.running()

    def stop(self) -> None:
        """See `JobRunner`. The turn that is under way ends."""
        self._thread.stop()

    def events(self, events: StepEvents) -> JobEvents:
        """What a turn of the step runner has changed, for the dispatcher. Called once for each turn."""
        started, finished, failed, expired, emitted, task, runs = events
        if task is None:
            if finished:
                raise RuntimeError("Jobs have finished without a task. This is a bug.")
            return JobEvents(started, (), failed, expired, emitted, None, runs)
        # A task as a batch: rows are its sequences, and each runs up to a quantum of tokens.
        longest = max(task.quantum, -(-task.steps // task.rows))
        sums = Sums(task.steps, task.steps * longest, longest, task.rows)
        number = next(self._numbers)
        stats = BatchStats("step", task.cell, 0.0, sums, task.predicted_s, task.device_s, len(finished), number)
        return JobEvents(started, finished, failed, expired, emitted, stats, runs)

    def _job(self, flight: Flight) -> StepJob:
        leader = flight.leader
        request = leader.request
        return StepJob(flight.job_id, self._work_of(leader), flight.arrival, request.deadline, request.bulk)
