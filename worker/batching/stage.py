"""The batch stage as the worker sees it, whatever computes the results: batches on lanes, or steps of cells."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.engine.types import Float32Array, ModelInfo
from penstock.producer.wire.headers import ReplyAddress
from penstock.worker.batching.batch import BatchStats
from penstock.worker.kafka.progress.offsets import Source
from penstock.worker.requests.generation import ReadOptions
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.request import Rejection
from penstock.worker.requests.sequence_block import SequenceBlock, SequenceResults
from penstock.worker.requests.sequence_work import ReadFields
from penstock.worker.resolved_settings import ResolvedSettings


class SequenceDispatcher(Protocol):
    """Owns sequences between the cache look-up and their results. Called on the worker's event loop.

    Every sequence added ends once: in results, or with its request, which is rejected once or taken back.
    """

    def add(self, sequences: Sequence[SequenceBlock]) -> None:
        """Queue sequences."""

    def drain(self) -> None:
        """From now on run what is queued without waiting for more."""

    def resume(self) -> None:
        """End the effect of `drain`."""

    def take_back(self, sources: Collection[Source], *, bulk_only: bool, begun: bool) -> list[PendingRecord]:
        """Drop requests of these partitions. Returns their records, which remain without an answer.

        Without `begun`: only requests of which some sequence has not begun.
        """

    def cancel(self, addresses: Collection[ReplyAddress]) -> None:
        """Senders take back the requests with these reply addresses: those of many steps are rejected, others run."""

    async def watch(self) -> None:
        """Report `unhealthy` when a computation does not end. Runs until cancelled."""

    def close(self) -> None:
        """Run nothing more and report nothing more. Records whose sequences are here stay uncommitted."""


class StageLoad(Protocol):
    """Figures of the stage's work for telemetry. The properties are read from other threads too."""

    @property
    def num_queued(self) -> int:
        """Sequences that have not begun."""

    @property
    def queued_tokens(self) -> int:
        """Tokens of their inputs."""

    @property
    def token_budget(self) -> int:
        """Most tokens that run together."""

    def backlog_s(self, now: float) -> float:
        """Predicted seconds until all work is done."""

    def errors(self) -> tuple[float, float]:
        """(p50, p95) of |predicted / measured - 1| of recent batches. NaN: none yet."""


@dataclass(frozen=True, slots=True)
class StageCallbacks:
    """Called on the event loop.

    Args:
        ran: a batch, or a quantum of steps, has ended. Called before its results are reported.
        results: sequences have their results; those of requests that have failed are among them. The statistics are
            those of the batch, or of the sequence's steps.
        rejected: these requests have failed.
        partial: what these sequences, which are equal and stream, have of their result so far.
        unhealthy: the engine fails on clean input, or does not return. The dispatcher has closed itself.
    """

    ran: Callable[[BatchStats], None]
    results: Callable[[SequenceResults, BatchStats], None]
    rejected: Callable[[Sequence[Rejection]], None]
    unhealthy: Callable[[BaseException], None]
    partial: Callable[[Sequence[SequenceBlock], Float32Array], None] = lambda sequences, result: None


class BatchStage(NamedTuple):
    """The parts of a batch stage."""

    dispatcher: SequenceDispatcher
    load: StageLoad
    replied: Callable[[float], None]  # told the seconds from each reply's making to its acknowledgement


class ServedModel(Protocol):
    """A loaded and warm model. Made and closed by the process, on the event loop; used by one worker."""

    @property
    def info(self) -> ModelInfo: ...

    @property
    def read_options(self) -> ReadOptions | None:
        """Reads the options of `generate`; None: the model does not generate."""

    @property
    def read_fields(self) -> ReadFields | None:
        """Reads the fields of a sequence; None: the model is not made of cells."""

    def stage(self, settings: ResolvedSettings, callbacks: StageCallbacks) -> BatchStage:
        """The batch stage. Called once."""
        ...

    def fault(self) -> str:
        """Why the engine does not work; empty if it does. Called from another thread, which waits for seconds."""
        ...

    async def close(self, timeout_s: float) -> bool:
        """End what computes. False if it still runs after `timeout_s`."""
        ...
