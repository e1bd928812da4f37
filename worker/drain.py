"""The drain: what is in flight is finished, or given up, before partitions are revoked or the worker ends."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import structlog

from penstock.worker.batching.stage import SequenceDispatcher
from penstock.worker.kafka.progress.offsets import Source
from penstock.worker.requests.fetch_buffer import FetchBuffer
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.requests.long_records import LongRecords
from penstock.worker.stop_signal import StopSignal

_REBALANCE_S = 2.0  # in which requests may begin that wait for a batch. All other members of the group wait meanwhile

log = structlog.get_logger("penstock.worker")


class Drain:
    """Called on the worker's event loop."""

    def __init__(
        self,
        fetched: FetchBuffer,
        long_records: LongRecords,
        dispatcher: SequenceDispatcher,
        ledger: RecordLedger,
        stop: StopSignal,
        *,
        in_order: bool,
    ) -> None:
        """`in_order`: an answer is acknowledged after those of all earlier records of its partition.

        Then answers behind a record that is given up are never acknowledged, so a rebalance does not wait for them.
        """
        self._fetched = fetched
        self._long_records = long_records
        self._dispatcher = dispatcher
        self._ledger = ledger
        self._stop = stop
        self._in_order = in_order

    async def worker(self, until: float) -> None:
        """Finish all that was admitted, up to a monotonic time, and give up what is not prepared by then."""
        started = time.monotonic()
        self._fetched.release()
        self._dispatcher.drain()
        await self._finish(started, until, self._ledger.wait_until_finished)
        self._ledger.give_up(self._long_records.take_back(begun=True))

    async def partitions(self, sources: set[Source], bulk: "asyncio.Task[None] | None", drain_s: float) -> None:
        """Finish the batches that have begun, and what else is done soon. The next owner reads the rest again.

        `bulk` enqueues bulk records: it queues those that it has, and takes no others.
        """
        started, give_up = time.monotonic(), self._ledger.give_up
        self._fetched.release()
        if bulk is not None:
            await asyncio.wait((bulk,), timeout=drain_s)
        give_up(self._long_records.take_back(begun=False))
        give_up(self._dispatcher.take_back(sources, bulk_only=True, begun=False))
        self._dispatcher.drain()
        await self._ledger.wait_until_finished(min(_REBALANCE_S, drain_s))
        give_up(self._long_records.take_back(begun=True))
        give_up(self._dispatcher.take_back(sources, bulk_only=False, begun=False))
        wait = self._ledger.wait_until_answered if self._in_order else self._ledger.wait_until_finished
        await self._finish(started, started + drain_s, wait)
        give_up(self._dispatcher.take_back(sources, bulk_only=False, begun=True))

    async def _finish(self, started: float, until: float, wait: Callable[[float], Awaitable[bool]]) -> None:
        if self._stop.failure is None and not await wait(until - time.monotonic()):
            log.warning("drain_incomplete", unfinished=self._ledger.num_unfinished)
        log.info("drained", unfinished=self._ledger.num_unfinished, seconds=round(time.monotonic() - started, 3))
