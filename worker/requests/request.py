"""A valid request and its sequences, between validation and the answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.engine.types import Float32Array
from penstock.producer.errors import PenstockError
from penstock.producer.wire.headers import ReplyAddress
from penstock.producer.wire.messages import Request, Uint32Array
from penstock.worker.requests.record import PendingRecord

_PAIR_TOKENS = 128  # of one of the sequences that back-pressure counts, which takes them for half a kilobyte
_RESULT_BYTES = 1024  # likewise: all results that are held may then take as much as the replies that are held


class Rejection(NamedTuple):
    """A record that is answered with an error."""

    record: PendingRecord
    address: ReplyAddress | None  # None: the record names no place that may be answered
    error: PenstockError  # records that are late, or refused, together share it


@dataclass(slots=True, eq=False)
class StageTimes:
    """Times at which the stages took records: one object, which all requests share that were validated together."""

    arrived: float  # monotonic seconds at validation
    arrived_unix_ms: float  # the same moment
    queued: float = 0.0  # monotonic seconds when the dispatcher got the sequences
    tokenize_ms: float = 0.0
    cache_ms: float = 0.0

    def note_stages(self, prepared: float, looked_up: float) -> None:
        """The requests were prepared, and then looked up in the cache, at these monotonic seconds."""
        self.tokenize_ms = round((prepared - self.arrived) * 1e3, 3)
        self.cache_ms = round((looked_up - prepared) * 1e3, 3)

    def note_queued(self, now: float) -> None:
        """The dispatcher has the sequences."""
        self.queued = now


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A valid request that waits for the results of its sequences. Its fields change by its methods only.

    It ends once: complete, with its first error, or taken back. `is_failed` says that it ended without a result: stages
    that still hold its sequences drop them, and ignore their results.
    """

    record: PendingRecord
    address: ReplyAddress
    message: Request
    deadline: float | None  # monotonic seconds; the request's own, else from the worker's objective
    bulk: bool  # of class bulk: latency does not matter
    times: StageTimes
    num_cached: int = field(default=0, init=False)  # results that came from the cache
    num_tokens: int = field(default=0, init=False)  # of its sequences, once they are prepared
    token_bytes: int = field(default=0, init=False)  # of its results, for each token; 0 where these are small
    is_failed: bool = field(default=False, init=False)
    spans: Sequence[Uint32Array] = field(default=(), init=False)  # token_classify of texts: [n, 2] a sequence
    chunks: Sequence[tuple[int, int]] | None = field(default=None, init=False)  # places of its texts in a record's one
    flights: list[int] = field(default_factory=list, init=False)  # the numbers of all that it was in, see `Flights`
    results: list[Float32Array | None] = field(init=False)  # by sequence, in the request's order
    num_missing: int = field(init=False)  # results still to come

    def __post_init__(self) -> None:
        self.num_missing = self.message.num_sequences
        self.results = [None] * self.num_missing

    @property
    def num_counted(self) -> int:
        """Sequences, as back-pressure counts them: pairs with labels by their tokens, vectors of tokens by their bytes.

        The tokens of other requests are bounded by the bytes of their records. A text has its own once for each label.
        """
        num_held = self.num_tokens * self.token_bytes // _RESULT_BYTES
        num_paired = 0 if self.message.options.labels is None else self.num_tokens // _PAIR_TOKENS
        return max(len(self.results), num_held, num_paired)

    @property
    def is_cached(self) -> bool:
        """Whether the cache had all of its results: nothing was computed for it."""
        return self.num_cached == len(self.results)

    def note_spans(self, spans: Sequence[Uint32Array]) -> None:
        """Its texts were tokenized: the places of their tokens."""
        self.spans = spans

    def note_chunks(self, spans: Sequence[tuple[int, int]]) -> None:
        """Its texts are parts of its record's text: the first character of each, and the one after its last."""
        self.chunks = spans

    def note_tokens(self, num_tokens: int, token_bytes: int = 0) -> None:
        """Its sequences are prepared, and have so many tokens. `token_bytes`: see there."""
        self.num_tokens, self.token_bytes = num_tokens, token_bytes

    def note_cached(self, count: int) -> None:
        """The cache has the results of so many of its sequences."""
        self.num_cached += count

    def settle(self, indices: Sequence[int], rows: Sequence[Float32Array]) -> bool:
        """Store results of sequences. True when they complete the request: the caller then sends the reply."""
        results = self.results
        for index, row in zip(indices, rows, strict=True):
            if results[index] is not None:
                raise RuntimeError("A sequence was settled twice. This is a bug.")
            results[index] = row
        self.num_missing -= len(indices)
        return self.num_missing == 0 and not self.is_failed

    def reject(self, error: PenstockError) -> Rejection:
        """End with an error. The caller sends it."""
        self._fail()
        return Rejection(self.record, self.address, error)

    def take_back(self) -> PendingRecord:
        """End without an answer. Returns the record, which the caller gives up."""
        self._fail()
        return self.record

    def _fail(self) -> None:
        if self.is_failed:
            raise RuntimeError("A request that had failed ended again. This is a bug.")
        self.is_failed = True
