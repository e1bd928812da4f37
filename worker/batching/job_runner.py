"""Types between the dispatcher and what runs its jobs: batches on lanes, or a step runner on its thread."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from penstock.engine.types import Float32Array
from penstock.scheduler.types import RejectedJob
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.flights import Flight
from penstock.worker.batching.watchdog import WorkUnderway
from penstock.worker.requests.sequence_block import SequenceBlock


class JobEvents(NamedTuple):
    """Changes since the last call. Those of jobs that have left are ignored."""

    started: Sequence[int] = ()  # jobs that have left the queue: they run, or are in a batch that is to run
    finished: Sequence[tuple[int, Float32Array]] = ()  # jobs that ended with the task of `stats`
    failed: Mapping[int, BaseException] = {}  # jobs on which the engine fails, while it works otherwise
    expired: Sequence[RejectedJob] = ()  # jobs that will not run, or not to their end
    emitted: Sequence[tuple[int, Float32Array]] = ()  # of jobs that stream: their results so far
    stats: BatchStats | None = None  # of a task of steps that has ended; of batches `on_batch` tells
    runs: Mapping[int, int] = {}  # failed runs of failed jobs; 1 where a job is not listed


class JobRunner(Protocol):
    """Runs the jobs of a dispatcher. Called on the event loop, and never blocks.

    It tells its `RunnerOwner` what becomes of the jobs. Each ends once: rejected, finished, failed, expired, cancelled,
    or not wanted any more when its batch is to run.
    """

    @property
    def by_step(self) -> bool:
        """Whether jobs run for many steps, and may be left between two. Else a job that has begun runs to its end."""
        ...

    def add(self, flights: Sequence[Flight]) -> Sequence[RejectedJob]:
        """Queue the jobs of flights. Returns those that are rejected at once.

        The job of a flight with a `former` one takes its place: that leaves, unless the new one is rejected.
        """
        ...

    def cancel(self, ids: Sequence[int]) -> None:
        """Let jobs leave: queued ones; where jobs run for many steps, also those that have begun."""
        ...

    def advance(self) -> JobEvents | None:
        """Begin what can begin now, and return what that has changed. None: nothing can begin before an event."""
        ...

    def drain(self) -> None:
        """From now on nothing waits for more jobs."""
        ...

    def resume(self) -> None:
        """End the effect of `drain`."""
        ...

    def running(self) -> Iterable[WorkUnderway]:
        """The batches, or the task of steps, that the engine has not finished."""
        ...

    def stop(self) -> None:
        """Begin nothing more."""
        ...


class RunnerOwner(Protocol):
    """The dispatcher as a runner sees it. Called on the event loop."""

    def on_events(self, events: JobEvents | None) -> None:
        """Something has changed. None: only that the runner can begin something."""
        ...

    def on_batch(
        self, ids: Sequence[int], rows: Sequence[Float32Array], stats: BatchStats, began: float | None
    ) -> None:
        """A batch has the results of these jobs. `on_events` follows. began: when a lane took it up."""
        ...

    def wanted(self, ids: Sequence[int], now: float) -> tuple[list[int], list[SequenceBlock]]:
        """Of jobs that are to run now, those that a request waits for in time, and `blocks` of those.

        The others have ended.
        """
        ...

    def blocks(self, ids: Sequence[int]) -> list[SequenceBlock]:
        """The sequences of jobs that have not ended, in their order. Ids that follow one another make few blocks."""
        ...

    def give_up(self, error: BaseException) -> None:
        """The engine fails on clean input, or its device has failed for good."""
        ...
