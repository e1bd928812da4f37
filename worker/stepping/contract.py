"""Types between the step dispatcher, on the event loop, and the runner of requests of many steps, on its thread."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from penstock.engine.errors import EngineError
from penstock.engine.types import Float32Array
from penstock.scheduler.types import RejectedJob


class StepJob(NamedTuple):
    """One sequence of a request, which runs for one or more steps."""

    id: int  # unique among the runner's jobs
    work: object  # checked input, of the type that this runner takes
    arrival: float  # monotonic seconds
    deadline: float | None  # monotonic seconds
    bulk: bool


class StepStats(NamedTuple):
    """Measurements of one task, which ran rows of one cell for a quantum of steps."""

    cell: str
    rows: int
    steps: int  # of all rows
    quantum: int
    predicted_s: float
    device_s: float


class StepEvents(NamedTuple):
    """Changes since the last call. Each job ends once: finished, failed, expired, or cancelled by the caller."""

    started: Sequence[int] = ()  # jobs that have left the queue: their first step ran, or was about to
    finished: Sequence[tuple[int, Float32Array]] = ()  # flat; of integer emissions the bits, so that bytes are kept
    failed: Mapping[int, EngineError] = {}
    expired: Sequence[RejectedJob] = ()
    emitted: Sequence[tuple[int, Float32Array]] = ()  # of jobs that stream: their results so far
    stats: StepStats | None = None
    runs: Mapping[int, int] = {}  # failed runs of failed jobs; 1 where a job is not listed


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

    def advance(self, now: float) -> StepEvents:
        """Start what may start, and wait for the oldest task underway: for one quantum at most."""
        ...
