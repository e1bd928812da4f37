"""Types between the event loop and the runner of requests of many steps, on its thread."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.scheduler.cellular import CellTask
from penstock.worker.batching.batch import BatchStats, Sums
from penstock.worker.batching.job_runner import JobEvents


class StepJob(NamedTuple):
    """One sequence of a request, which runs for one or more steps."""

    id: int  # unique among the runner's jobs
    work: object  # checked input, of the type that this runner takes
    arrival: float  # monotonic seconds
    deadline: float | None  # monotonic seconds
    bulk: bool


def stats_of(task: CellTask, cell: str, num_steps: int, device_s: float, num_ended: int) -> BatchStats:
    """A task as a batch: its rows are sequences, and each runs up to a quantum of tokens. num_steps: of all rows."""
    num_rows = len(task.jobs)
    longest = max(task.quantum, -(-num_steps // num_rows))
    sums = Sums(num_steps, num_steps * longest, longest, num_rows)
    return BatchStats("step", cell, 0.0, sums, task.predicted_s, device_s, num_ended, task.id)


class StepRunner(Protocol):
    """Runs jobs step by step. Used by one thread."""

    @property
    def is_idle(self) -> bool:
        """Whether there is no job, so that `advance` has nothing to do before the next `add`."""
        ...

    @property
    def predicted_s(self) -> float:
        """Seconds that the turn underway is predicted to take. Read by other threads."""
        ...

    def add(self, jobs: Sequence[StepJob]) -> None:
        """Queue jobs. They join when there is room for their state. What is wrong with one, `advance` returns."""
        ...

    def cancel(self, ids: Sequence[int]) -> None:
        """Let jobs leave before their next step. Unknown ids are ignored."""
        ...

    def idle(self) -> bool:
        """Do a piece of work that makes later steps faster, if there is any. Returns whether it did.

        Called while there is no job, before the caller waits for one.
        """
        ...

    def advance(self, now: float) -> JobEvents:
        """Start what may start, and wait for the oldest task underway: for one quantum at most.

        Returns the changes since the last call. Each job ends once: finished, failed, expired, or cancelled by the
        caller. Results are flat; of integer emissions the bits, so that bytes are kept.
        """
        ...
