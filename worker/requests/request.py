"""A valid request and its sequences, between validation and the answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.engine.types import Float32Array, Int32Array, TaskOptions
from penstock.producer.errors import PenstockError
from penstock.producer.wire.headers import ReplyAddress
from penstock.producer.wire.messages import Request, Uint32Array
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.sequence_work import SequenceWork


class Rejection(NamedTuple):
    """A record that is answered with an error."""

    record: PendingRecord
    address: ReplyAddress | None  # None: the record names no place that may be answered
    error: PenstockError  # records of one slice that are late, or refused, share it


@dataclass(slots=True, eq=False)
class SliceTimes:
    """Times at which the stages took a slice of records: one object, which all requests of the slice share."""

    arrived: float  # monotonic seconds at validation
    arrived_unix_ms: float  # the same moment
    queued: float = 0.0  # monotonic seconds when the dispatcher got the sequences
    tokenize_ms: float = 0.0
    cache_ms: float = 0.0


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A valid request that waits for the results of its sequences. It ends once: complete, or with its first error."""

    record: PendingRecord
    address: ReplyAddress
    message: Request
    deadline: float | None  # monotonic seconds; the request's own, else from the worker's objective
    bulk: bool  # of class bulk: latency does not matter
    times: SliceTimes
    num_cached: int = 0  # results that came from the cache
    num_tokens: int = 0  # of its sequences, once they are prepared
    is_failed: bool = False  # ended with an error; results that come later are ignored
    spans: Sequence[Uint32Array] = ()  # token_classify of texts: [n, 2] a sequence
    job_ids: list[int] = field(default_factory=list)  # every job that the scheduler got for it, or that it shares
    results: list[Float32Array | None] = field(init=False)  # by sequence, in the request's order
    num_missing: int = field(init=False)  # results still to come

    def __post_init__(self) -> None:
        self.num_missing = self.message.num_sequences
        self.results = [None] * self.num_missing

    def reject(self, error: PenstockError) -> Rejection:
        """End with an error."""
        self.is_failed = True
        return Rejection(self.record, self.address, error)


@dataclass(slots=True, eq=False)
class PendingSequence:
    """One sequence of a request, which waits for its result."""

    request: PendingRequest
    index: int  # its place in request.results
    token_ids: Int32Array | Uint32Array
    token_type_ids: Int32Array | None
    options: TaskOptions
    key: bytes  # for the cache and single flight: equal keys mean equal results
    is_stored: bool = True  # whether the cache keeps its result; false: sampling without a seed, which has its own key
    work: SequenceWork | None = None  # of a model made of cells
    job_id: int = -1  # the last job that the scheduler got for it
    num_failures: int = 0  # engine runs that failed with it, or with the others of its flight

    def settle(self, result: Float32Array) -> bool:
        """Store the result. True when it completes the request: the caller then sends the reply."""
        request = self.request
        if request.results[self.index] is not None:
            raise RuntimeError("A sequence was settled twice. This is a bug.")
        request.results[self.index] = result
        request.num_missing -= 1
        return request.num_missing == 0 and not request.is_failed


SequenceResults = Sequence[tuple[PendingSequence, Float32Array]]  # from the cache or from a batch
