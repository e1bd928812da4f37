"""One worker: consumer → admission → cache → dispatcher → delivery → commit. This file is the order of things."""

import asyncio
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import structlog
from aiokafka import TopicPartition

from penstock.cache import ResponseCache
from penstock.engine import EngineLanes
from penstock.engine.types import Engine, Float32Array
from penstock.producer.errors import PenstockError
from penstock.producer.tokenization import Tokenizer
from penstock.producer.transport.connection import ensure_topics
from penstock.producer.transport.outbox import Outbox
from penstock.producer.wire.headers import ReplyAddress
from penstock.producer.wire.topics import bulk_topic, dead_letter_topic
from penstock.scheduler import LearnedCost, Scheduler
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.deadline_errors import cause_of
from penstock.worker.batching.dispatcher import Dispatcher
from penstock.worker.kafka.backpressure import Held
from penstock.worker.kafka.commits import LAST_COMMIT_S, Commits
from penstock.worker.kafka.consumer import Consumer
from penstock.worker.kafka.fetch_buffer import Polled
from penstock.worker.kafka.offsets import OffsetTracker
from penstock.worker.replies.cache_writer import WriteBack
from penstock.worker.replies.delivery import Delivery
from penstock.worker.replies.reply import make_reply
from penstock.worker.requests.preparation import Admission
from penstock.worker.requests.record import KafkaRecord, Row
from penstock.worker.requests.validation import Intake
from penstock.worker.resolved_settings import ResolvedSettings, scheduler_settings
from penstock.worker.telemetry.load_monitor import TICK_S, Load, why_late
from penstock.worker.telemetry.metrics import Metrics

_NUM_PARTITIONS = 8  # of topics that the worker has to create
_POLL_MS = 200
_PAUSED_POLL_MS = 10  # soon enough to notice that there is room again
_ONCE_QUIET_S = 5.0  # ample for a job to write down a block of answers and send the next
_DISCONNECT_S = 2.0
_LEAVE_S = LAST_COMMIT_S + _DISCONNECT_S  # after the drain: the most that stopping takes without a broker

log = structlog.get_logger("penstock.worker")

T = TypeVar("T")


class Worker:
    """One model, one consumer-group member. `run` does everything; `stop` asks it to drain and return."""

    def __init__(
        self,
        settings: ResolvedSettings,
        engine: Engine,
        lanes: EngineLanes,
        cost: LearnedCost,
        *,
        tokenizer: Tokenizer | None,
        cache: ResponseCache | None,
    ) -> None:
        """The caller keeps ownership of `lanes`, `tokenizer` and `cache`, and closes them after `run`."""
        info = engine.info
        self._settings = settings
        self._info = info
        self._topic = settings.topic
        self._bulk_topic = bulk_topic(self._topic)
        self._cache = cache
        self._write_back = WriteBack(cache) if cache is not None else None
        self._offsets = OffsetTracker()
        self._outbox = Outbox(settings.bootstrap_servers, client_id="penstock-worker")
        self._held = Held(settings.max_in_flight, self._bulk_topic)
        self._polled = Polled(self._bulk_topic)
        self._admitting_bulk: asyncio.Task[None] | None = None
        self._delivery = Delivery(self._outbox, self._held, self._finished)
        intake = Intake(
            info,
            reply_topics=settings.reply_topics,
            bulk_topic=self._bulk_topic,
            slo_s=None if settings.slo_ms is None else settings.slo_ms / 1e3,
            max_sequences=settings.max_sequences,
            max_reply_bytes=settings.max_reply_bytes,
        )
        self._admission = Admission(intake, info, tokenizer, self._refuse)
        self._consumer = Consumer(
            settings.bootstrap_servers,
            (self._topic, self._bulk_topic),
            settings.group_id,
            fetch_max_wait_ms=settings.fetch_max_wait_ms,
            drain_s=settings.drain_s,
            taken=self._on_taken,
            revoked=self._on_revoked,
        )
        self._commits = Commits(self._offsets, self._consumer)
        scheduler = Scheduler(scheduler_settings(settings), cost)
        self._cost = cost
        self._dispatcher = Dispatcher(
            lanes,
            scheduler,
            cost,
            clock=time.monotonic,
            settled=self._settled,
            failed=self._failed,
            batch_done=self._batch_done,
            unhealthy=self._on_unhealthy,
        )
        self._metrics = Metrics(
            queued_sequences=lambda: scheduler.num_queued,
            queued_tokens=lambda: scheduler.queued_tokens,
            unfinished_records=lambda: self._held.records,
        )
        self._load = Load(scheduler, cost, self._metrics, busy_s=self._dispatcher.busy_s)
        self._answered_ok = self._metrics.requests.labels("ok")
        self._latency = {bulk: self._metrics.latency.labels("bulk" if bulk else "online") for bulk in (False, True)}
        self._answered = 0
        self._stopping = asyncio.Event()
        self._stop_asked: float | None = None  # monotonic seconds
        self._nothing_unfinished = asyncio.Event()
        self._broken: BaseException | None = None

    @property
    def metrics(self) -> Metrics:
        """The worker's Prometheus metrics."""
        return self._metrics

    def stop(self) -> None:
        """Ask `run` to drain and return, within `drain_s` and 5 s. Called on the event loop, any number of times."""
        if self._stop_asked is None:
            self._stop_asked = time.monotonic()
        self._stopping.set()

    async def run(self) -> int:
        """Serve until `stop`, or with `once` until the topics have nothing new. Returns the process's exit code."""
        if not await self._start_unless_stopped():
            await self._outbox.stop(0.0)
            return 0
        regularly = [asyncio.create_task(self._commits.regularly()), asyncio.create_task(self._tell_load_regularly())]
        try:
            if self._settings.once:
                await self._serve_once()
            else:
                await self._serve()
        finally:
            for task in regularly:
                task.cancel()
            await self._shut_down()
        unfinished_job = self._settings.once and self._offsets.num_unfinished > 0
        return 1 if self._broken is not None or unfinished_job else 0

    async def _start(self) -> None:
        await self._outbox.start()
        topics = (self._topic, self._bulk_topic)
        dead_letters = map(dead_letter_topic, topics)
        await ensure_topics(self._settings.bootstrap_servers, [*topics, *dead_letters], _NUM_PARTITIONS)
        await self._consumer.start()
        log.info("worker_ready", topic=self._topic, model=self._info.name, tasks=sorted(self._info.tasks))

    async def _start_unless_stopped(self) -> bool:
        """Connect, however long the broker is away; false when `stop` was asked for meanwhile."""
        starting = asyncio.create_task(self._start())
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if starting.done():
            starting.result()
            return True
        starting.cancel()
        await asyncio.wait((starting,), timeout=_LEAVE_S)
        log.info("stopped", answered=0)
        return False

    async def _serve(self) -> None:
        while not self._stopping.is_set():
            await self._poll()

    async def _serve_once(self) -> None:
        """Until nothing new has come for `_ONCE_QUIET_S` after the end was reached and everything was answered.

        Not up to the end alone: a bulk job sends its next rows when it has the answers to the last.
        """
        ends: dict[TopicPartition, int] = {}
        quiet_since = time.monotonic()
        while not self._stopping.is_set() and time.monotonic() - quiet_since < _ONCE_QUIET_S:
            await self._poll()
            if await self._unless_stopped(self._consumer.reached(ends)):
                ends = await self._unless_stopped(self._consumer.end_offsets()) or {}
            at_end = self._consumer.assigned.is_set() and await self._unless_stopped(self._consumer.reached(ends))
            if at_end:
                self._dispatcher.drain()  # no batch mates are to come
            elif self._consumer.assigned.is_set():  # a revocation drains for itself
                self._dispatcher.resume()
            if not at_end or self._held.records:
                quiet_since = time.monotonic()
        log.info("end_reached", partitions=len(ends), unfinished=self._held.records)

    async def _poll(self) -> None:
        """One turn, with back-pressure adjusted."""
        self._adjust(self._topic, stop=self._held.is_full() or self._polled.waits(bulk=False), go=self._held.has_room())
        self._adjust(self._bulk_topic, stop=self._held.is_full(bulk=True), go=self._held.has_room(bulk=True))
        await self._turn()

    def _adjust(self, topic: str, *, stop: bool, go: bool) -> None:
        if stop:
            self._consumer.pause(topic)
        elif go and self._consumer.assigned.is_set():
            self._consumer.resume(topic)

    async def _turn(self) -> None:
        """Poll, and start on its way as much of what has arrived as may be held; bulk beside the turns that follow."""
        timeout_ms = _PAUSED_POLL_MS if self._consumer.is_paused else _POLL_MS
        await self._unless_stopped(self._consumer.poll(timeout_ms))
        if self._polled.waits(bulk=True) and (self._admitting_bulk is None or self._admitting_bulk.done()):
            self._admitting_bulk = asyncio.create_task(self._admit_polled(bulk=True))
            self._admitting_bulk.add_done_callback(_raise_failure)
        await self._admit_polled(bulk=False)

    async def _admit_polled(self, *, bulk: bool) -> None:
        while self._polled.waits(bulk=bulk) and self._held.can_admit(bulk=bulk) and not self._stopping.is_set():
            await self._admit(self._next_slice(bulk=bulk))
            await asyncio.sleep(0)

    async def _unless_stopped(self, asked: Coroutine[Any, Any, T]) -> T | None:
        """What the consumer says, or None once `stop` is asked for: aiokafka may wait for a broker without end."""
        answer = asyncio.create_task(asked)
        stop = asyncio.create_task(self._stopping.wait())
        await asyncio.wait((answer, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if answer.done():
            return answer.result()
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)
        return None

    def _on_taken(self, records: Sequence[KafkaRecord]) -> None:
        for record in records:
            self._held.take(record)
        self._polled.put(records)

    def _next_slice(self, *, bulk: bool) -> list[KafkaRecord]:
        """Some of what was polled. From here on these records are this worker's to answer."""
        records = self._polled.take_slice(bulk=bulk)
        for record in records:
            self._offsets.start((record.topic, record.partition), record.offset)
        self._nothing_unfinished.clear()
        return records

    def _leave_polled(self) -> None:
        """What was not begun is its next owner's: it will be read again from where the commits end."""
        for record in self._polled.take_all():
            self._held.let_go(record)

    async def _admit(self, records: Sequence[KafkaRecord]) -> None:
        now = time.monotonic()
        rows = await self._admission.rows(records, now, time.time())
        self._held.add_rows(records[0], len(rows))  # all are of one topic
        tokenized = time.monotonic()
        found = await self._cache.get_many([row.key for row in rows]) if self._cache is not None else {}
        tokenize_ms = round((tokenized - now) * 1e3, 3)
        cache_ms = round((time.monotonic() - tokenized) * 1e3, 3)
        for row in rows:
            row.owner.timing_ms["tokenize"] = tokenize_ms
            row.owner.timing_ms["cache"] = cache_ms
        self._dispatcher.add(self._answer_from_cache(found, rows) if found else rows)

    def _answer_from_cache(self, found: Mapping[bytes, bytes], rows: list[Row]) -> list[Row]:
        """Settle the rows that the cache knows; the others remain."""
        remaining = []
        for row in rows:
            value = found.get(row.key)
            if value is None:
                remaining.append(row)
            else:
                row.owner.cached += 1
                self._settled(row, np.frombuffer(value, np.float32))
        self._metrics.sequences.labels("cache").inc(len(rows) - len(remaining))
        return remaining

    def _settled(self, row: Row, result: Float32Array) -> None:
        """A row has its result; the last of a record sends its answer."""
        owner = row.owner
        if row.settle(result) and not owner.failed:
            self._held.drop_rows(owner.record, len(owner.rows))
            self._answered += 1
            now = time.monotonic()
            self._latency[owner.bulk].observe(now - owner.arrived)
            if owner.deadline is not None and now > owner.deadline:
                self._load.missed(why_late(owner))
            self._answered_ok.inc()
            self._delivery.reply(owner, make_reply(owner, self._info))

    def _failed(self, row: Row, error: PenstockError) -> None:
        """A row has an error; its record is refused, once."""
        owner = row.owner
        if owner.failed:
            return
        owner.failed = True
        self._held.drop_rows(owner.record, len(owner.rows))
        self._refuse(owner.record, owner.address, type(error)(error.message, {row.index: error}))

    def _refuse(self, record: KafkaRecord, address: ReplyAddress | None, error: PenstockError) -> None:
        self._metrics.requests.labels(error.code).inc()
        cause = cause_of(error)
        if cause is not None:
            self._load.missed(cause)
        self._delivery.refuse(record, address, error)

    def _batch_done(self, results: Sequence[tuple[Row, Float32Array]], stats: BatchStats) -> None:
        now = time.monotonic()
        sums = stats.sums
        self._cost.observe(sums.tokens, sums.squares, sums.longest, sums.count, stats.device_s)
        self._load.batch_done()
        shown: dict[str, int | str] = {"size": sums.count, "tokens": sums.tokens, "trigger": stats.trigger}
        compute_ms = round(stats.device_s * 1e3, 3)
        for row, _ in results:
            timing = row.owner.timing_ms
            timing["schedule"] = round(max(0.0, now - row.queued_at - stats.device_s) * 1e3, 3)
            timing["compute"] = compute_ms
            row.owner.batch = shown
        if self._write_back is not None:
            self._write_back.put({row.key: result.tobytes() for row, result in results})
        log.info(
            "batch_done",
            trigger=stats.trigger,
            partition=stats.partition,
            sequences=sums.count,
            tokens=sums.tokens,
            max_seqlen=sums.longest,
            padding_avoided=round(stats.padding_avoided, 4),
            predicted_s=round(stats.predicted_s, 6),
            device_s=round(stats.device_s, 6),
        )
        self._metrics.observe_batch(stats.trigger, sums.count, sums.tokens, sums.longest, stats.device_s)

    def _finished(self, record: KafkaRecord) -> None:
        """Everything a record is owed is acknowledged."""
        self._offsets.finish((record.topic, record.partition), record.offset)
        self._held.let_go(record)
        if self._offsets.num_unfinished == 0:
            self._nothing_unfinished.set()

    async def _tell_load_regularly(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._load.tick(time.monotonic())

    async def _on_revoked(self, sources: set[TopicPartition]) -> None:
        """Finish what is in flight, inside the bound; what is not finished will be read again by its new owner."""
        await self._drain(until=time.monotonic() + self._settings.drain_s)
        await self._commits.last()
        self._offsets.forget(sources)
        self._dispatcher.resume()

    async def _drain(self, until: float) -> None:
        started = time.monotonic()
        self._leave_polled()
        self._dispatcher.drain()
        if self._offsets.num_unfinished and self._broken is None:
            try:
                await asyncio.wait_for(self._nothing_unfinished.wait(), max(0.0, until - started))
            except TimeoutError:
                log.warning("drain_incomplete", unfinished=self._offsets.num_unfinished)
        log.info("drained", unfinished=self._offsets.num_unfinished, seconds=round(time.monotonic() - started, 3))

    async def _shut_down(self) -> None:
        """Every step has what the earlier ones left of one deadline: `drain_s` and `_LEAVE_S` after `stop`."""
        drain_until = (self._stop_asked or time.monotonic()) + self._settings.drain_s
        log.info("stopping", unfinished=self._offsets.num_unfinished)
        await self._drain(drain_until)
        await self._commits.last()
        self._dispatcher.close()
        if self._admitting_bulk is not None:
            self._admitting_bulk.cancel()
        left_s = max(_DISCONNECT_S, drain_until + _LEAVE_S - time.monotonic())
        await asyncio.gather(self._consumer.stop(left_s), self._outbox.stop(left_s - _DISCONNECT_S))
        if self._write_back is not None:
            await self._write_back.close()
        log.info("stopped", answered=self._answered)

    def on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """The event loop's last resort: a callback raised, so some record may never end. Leave it to other workers."""
        error = context.get("exception") or RuntimeError(context.get("message"))
        if "handle" not in context:  # not a callback: a library's forgotten future or connection, which strands nobody
            log.warning("library_noise", message=context.get("message"), error=repr(error))
            return
        log.error("callback_failed", error=repr(error), note="This is a bug.", exc_info=error)
        self._on_unhealthy(error)

    def _on_unhealthy(self, error: BaseException) -> None:
        """The engine fails on clean input: answer nothing more, leave the rest to other workers."""
        self._broken = error
        self.stop()


def _raise_failure(task: "asyncio.Task[None]") -> None:
    """In a callback, so that it reaches the event loop's last resort."""
    if not task.cancelled():
        task.result()
