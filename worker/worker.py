"""One worker: fetch ─▶ validate ─▶ prepare ─▶ look up ─▶ batch ─▶ reply ─▶ commit. This file connects the stages."""

import asyncio
import time
from collections.abc import Awaitable, Sequence

import structlog
from aiokafka import TopicPartition

from penstock.cache import ResponseCache
from penstock.producer.errors import Cancelled
from penstock.producer.tokenization import Tokenizer
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.outbox import Outbox
from penstock.producer.wire.topics import bulk_topic
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.stage import ServedModel, StageCallbacks
from penstock.worker.delivery_stages import delivery_stages, partial_replies
from penstock.worker.drain import Drain
from penstock.worker.end_of_topics import EndOfTopics
from penstock.worker.fetch_stage import fetch_stage
from penstock.worker.kafka.commits import LAST_COMMIT_S
from penstock.worker.kafka.topic_creation import create_topics
from penstock.worker.replies.delivery import Delivery
from penstock.worker.replies.reply import encode_replies
from penstock.worker.request_stages import request_stages
from penstock.worker.requests.long_slices import LongSlices
from penstock.worker.requests.lookup import look_up
from penstock.worker.requests.quarantine import Quarantine
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.request import PendingRequest, Rejection, SequenceResults
from penstock.worker.requests.write_behind import WriteBehindCache
from penstock.worker.resolved_settings import ResolvedSettings
from penstock.worker.stop_signal import StopSignal, watched
from penstock.worker.telemetry.load_monitor import LoadMonitor
from penstock.worker.telemetry.metrics import Metrics
from penstock.worker.telemetry.traces import NO_TRACES, Traces

_DISCONNECT_S = 2.0
_TURNS = 4  # of the event loop between two slices: a reply takes several to get from the lane to its socket
LEAVE_S = LAST_COMMIT_S + _DISCONNECT_S  # after the drain: the longest that stopping takes without a broker

log = structlog.get_logger("penstock.worker")


class Worker:
    """One model, one consumer-group member. `run` does everything; `stop` asks it to drain and return."""

    def __init__(
        self,
        settings: ResolvedSettings,
        served: ServedModel,
        *,
        tokenizer: Tokenizer | None,
        cache: ResponseCache | None,
        traces: Traces = NO_TRACES,
        number: int = 0,
    ) -> None:
        """`number` is that on this machine. The caller closes `served`, `tokenizer` and `cache`, after `run`."""
        info = self._info = served.info
        self._settings, self._tokenizer, self._traces = settings, tokenizer, traces
        self._stop = self.stop_signal = StopSignal()  # public for the process: errors of its event loop, readiness
        self._topics = (settings.topic, bulk_topic(settings.topic))
        self._cluster = KafkaCluster.of(settings)
        self._backpressure, offsets, self._ledger, self._fetched, self.consumer = fetch_stage(
            settings, self._cluster, self._topics, number=number, revision=info.revision, revoked=self._on_revoked
        )
        self._validator, self._preparer = request_stages(settings, served, tokenizer, has_cache=bool(cache))
        self._partials = partial_replies(settings, self._cluster, info, tokenizer, Outbox)
        sent = self._partials.send
        callbacks = StageCallbacks(self._on_ran, self._on_results, self._reject, self._stop.fail, sent)
        self._dispatcher, load, replied = served.stage(settings, callbacks)
        self._cache = None if cache is None else WriteBehindCache(cache)
        self._outbox, self._committer = delivery_stages(settings, self._cluster, self.consumer, offsets, Outbox)
        done = traces.ending(self._ledger.acknowledge)
        self.metrics = Metrics(info, load, self._backpressure, self._ledger)
        self.metrics.show("penstock_skipped_offsets_total", lambda: self.consumer.num_skipped)
        counted = self.metrics.count
        self._delivery = Delivery(self._outbox, self._backpressure, done, replied, counted, settings.group_id, number)
        self._quarantine = Quarantine(self._committer, self._ledger, self._stop, self.consumer.assigned.is_set)
        lag, dead_letters = (lambda: offsets.lag(self.consumer.last_ends())), self._delivery.dead_letters
        self._monitor = LoadMonitor(load, self.metrics, lag=lag, dead_letters=dead_letters)
        self._process = LongSlices(self._process_slice, self._reject_late)
        in_order = settings.delivery == "exactly_once"
        self._drain = Drain(self._fetched, self._process, self._dispatcher, self._ledger, self._stop, in_order=in_order)
        self._processing_bulk: asyncio.Task[None] | None = None
        self._num_answered = 0

    def stop(self) -> None:
        """Ask `run` to drain and return, within `drain_s` and 5 s. Called on the event loop, any number of times."""
        self._stop.ask()

    async def run(self, may_join: Awaitable[None] | None = None) -> int:
        """Join the group when `may_join` ends, and serve until `stop`. Returns the process's exit code."""
        if not await self._stop.unless_stopped(self._start(may_join)):
            log.info("stopped", answered=0)
            await self._outbox.stop(0.0)
            return 0
        background = [watched(self._committer.run()), watched(self._monitor.run()), watched(self._dispatcher.watch())]
        try:
            await self._serve()
        except Exception as error:
            self._stop.fail(error)
            raise
        finally:
            for task in background:
                task.cancel()
            is_committed = await self._shut_down()
        is_left = self._settings.once and (self._ledger.num_unfinished > 0 or not is_committed)
        return int(self._stop.failure is not None or is_left)

    async def _start(self, may_join: Awaitable[None] | None) -> bool:
        """Connect, however long the broker is away. Returns true."""
        if may_join is not None:
            await may_join
        await self._outbox.start()
        await create_topics(self._cluster, self._outbox, self._topics, self._settings.partitions)
        await self.consumer.start()
        log.info("worker_ready", topic=self._topics[0], model=self._info.name, tasks=sorted(self._info.tasks))
        return True

    async def _serve(self) -> None:
        """Serve until the worker is to stop, or with `once` until the topics have nothing new."""
        end = EndOfTopics(self.consumer, self._dispatcher, self._backpressure) if self._settings.once else None
        while not self._stop.is_set():
            await self._fetch_and_process()
            if end is not None and await self._stop.unless_stopped(end.is_reached()):
                break

    async def _fetch_and_process(self) -> None:
        """One turn: online records are processed before the next poll, bulk records beside the turns that follow."""
        await self._stop.cut_short(self._fetched.fill(self.consumer))
        if self._fetched.can_take(bulk=True) and (self._processing_bulk is None or self._processing_bulk.done()):
            self._processing_bulk = watched(self._process_fetched(bulk=True))
        await self._process_fetched(bulk=False)

    async def _process_fetched(self, *, bulk: bool) -> None:
        while self._fetched.can_take(bulk=bulk) and not self._stop.is_set():
            await self._quarantine.gate()
            await self._quarantine.run(self._fetched.take_slice(bulk=bulk), self._process)
            for _ in range(_TURNS if self._fetched.can_take(bulk=bulk) else 0):
                await asyncio.sleep(0)

    async def _process_slice(self, records: Sequence[PendingRecord]) -> None:
        """Take admitted records through the stages up to the batch queue."""
        now = time.monotonic()
        requests, rejections = self._validator.validate(records, now, time.time())
        self._reject(rejections)
        await self._queue(requests)
        cancelled = [one.address for one in rejections if one.address and isinstance(one.error, Cancelled)]
        if cancelled:
            self._dispatcher.cancel(cancelled)

    async def _queue(self, requests: Sequence[PendingRequest]) -> None:
        sequences, rejections = await self._preparer.prepare(requests)
        self._reject(rejections)
        queued = [sequence.request for sequence in sequences if sequence.index == 0]
        self._ledger.queue(queued)
        if not queued:
            return
        prepared = time.monotonic()
        hits, misses = await look_up(self._cache, sequences)
        queued[0].times.note_stages(prepared, time.monotonic())
        self._traces.begin(sequences)
        if hits:
            self.metrics.from_cache.inc(len(hits))
            self._settle(hits, None)
        self._dispatcher.add(misses)

    def _reject_late(self, records: Sequence[PendingRecord], wait_s: float) -> bool:
        rejections = self._validator.reject_late(records, time.monotonic(), time.time(), wait_s)
        self._reject(rejections)
        return bool(rejections)

    def _on_ran(self, stats: BatchStats) -> None:
        self._monitor.batch_done(stats)

    def _on_results(self, results: SequenceResults, stats: BatchStats) -> None:
        if self._cache is not None:
            self._cache.put({sequence.key: result.tobytes() for sequence, result in results if sequence.is_stored})
        self._traces.batch_done(stats, results)
        self._settle(results, stats)

    def _settle(self, results: SequenceResults, stats: BatchStats | None) -> None:
        """Store results of a batch, or without `stats` of the cache, and reply to the requests that they complete."""
        now = time.monotonic()
        completed = [sequence.request for sequence, result in results if sequence.settle(result)]
        self._ledger.answer([request.record for request in completed])
        self._monitor.answered(completed, stats, now)
        self._delivery.reply(completed, encode_replies(completed, self._info, stats, now, self._tokenizer))
        self._num_answered += len(completed)

    def _reject(self, rejections: Sequence[Rejection]) -> None:
        """Send the error replies and dead letters of records that are at fault, late or refused."""
        self._ledger.answer([rejection.record for rejection in rejections])
        self._monitor.rejected([rejection.error for rejection in rejections])
        self._traces.rejected(rejections)
        self._delivery.reject(rejections)

    async def _on_revoked(self, sources: set[TopicPartition]) -> None:
        drain_s = 0.0 if self.consumer.is_evicted else self._settings.drain_s  # what others answer is not finished
        await self._drain.partitions(sources, self._processing_bulk, drain_s)
        self._quarantine.hand_over()
        await self._committer.commit_last()
        self._ledger.forget(sources)
        self._dispatcher.resume()

    async def _shut_down(self) -> bool:
        """Drain, commit, disconnect, in what is left of `drain_s` and `LEAVE_S`. Returns false without the commit."""
        self._stop.ask()
        drain_until = (self._stop.asked_at or time.monotonic()) + self._settings.drain_s
        log.info("stopping", unfinished=self._ledger.num_unfinished)
        await self._drain.worker(drain_until)
        self._quarantine.hand_over()
        is_committed = await self._committer.commit_last()
        self._dispatcher.close()
        if self._processing_bulk is not None:
            self._processing_bulk.cancel()
        left_s = max(_DISCONNECT_S, drain_until + LEAVE_S - time.monotonic())
        outbox = self._outbox.stop(left_s - _DISCONNECT_S)
        await asyncio.gather(self.consumer.stop(left_s), outbox, self._partials.stop())
        if self._cache is not None:
            await self._cache.close()
        self._monitor.log_rest(time.monotonic())
        log.info("stopped", answered=self._num_answered)
        return is_committed
