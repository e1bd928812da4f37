"""Decides whether a worker traces its requests, and stands for the traces where it does not."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from penstock.engine.types import ModelInfo
from penstock.producer.tracing.switch import open_tracing
from penstock.worker.batching.batch import BatchStats
from penstock.worker.kafka.fetching.group import client_id
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.request import Rejection
from penstock.worker.requests.sequence_block import SequenceBlock, SequenceResults
from penstock.worker.resolved_settings import ResolvedSettings
from penstock.worker.telemetry.logs import service_attributes


class Traces(Protocol):
    """Told of each step that is a stage of a trace. Called on the worker's event loop only."""

    def begin(self, sequences: Sequence[SequenceBlock]) -> None:
        """The sequences of requests were prepared, and the cache was asked for them."""

    def batch_done(self, stats: BatchStats, results: SequenceResults) -> None:
        """A batch ran. Called before its results are settled."""

    def rejected(self, rejections: Sequence[Rejection]) -> None:
        """Records are about to be answered with errors."""

    def ended(self, records: Sequence[PendingRecord]) -> None:
        """The broker has acknowledged the answers to these records."""


class NoTraces:
    """No spans: nothing is kept and nothing imported."""

    def begin(self, sequences: Sequence[SequenceBlock]) -> None: ...

    def batch_done(self, stats: BatchStats, results: SequenceResults) -> None: ...

    def rejected(self, rejections: Sequence[Rejection]) -> None: ...

    def ended(self, records: Sequence[PendingRecord]) -> None: ...


NO_TRACES = NoTraces()


@asynccontextmanager
async def open_traces(settings: ResolvedSettings, info: ModelInfo, worker: int) -> AsyncIterator[Traces]:
    """The traces of one worker, by the environment of its process. `worker`: the member's number on its machine.

    At the end, what is left is exported, within a bound.
    """
    tracing = open_tracing(service_attributes())
    if tracing is None:
        yield NO_TRACES
        return
    from penstock.worker.telemetry.request_traces import RequestTraces

    try:
        yield RequestTraces(
            tracing,
            model=info.name,
            group_id=settings.group_id,
            client_id=client_id(worker),
            has_cache=settings.cache_path is not None,
        )
    finally:
        await tracing.close()
