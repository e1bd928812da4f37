"""The path of a request: fetch, validate, prepare, look up, batch, run, reply, commit.

The methods of `Pipeline` come in this order. Where a record waits, it waits in one place:

    fetched: FetchBuffer    polled, and not admitted yet
    enqueue                 its texts are tokenized in a thread, or its sequences are looked up in the cache
    Quarantine              admitted, and a dead owner may have run it: until a commit names it
    UnpreparedRecords       admitted, of a route, and its schema is fetched
    LongRecords             admitted, with a text so long that it waits for its turn
    dispatcher              its sequences wait for a batch, or are in one
    Delivery                its answer is on its way to the broker; with exactly_once, in `WaitingAnswers` before
    OffsetTracker           acknowledged, and an earlier record of its partition is not

`RecordLedger` has the state of each, and raises if a step does not follow from it.
"""

import asyncio
import time
from collections.abc import Sequence
from itertools import compress

from penstock.cache import ResponseCache
from penstock.producer.errors import Cancelled, WrongArgument
from penstock.producer.languages import Languages
from penstock.producer.prompts import Prompts
from penstock.producer.tokenization import Tokenizer
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.outbox import Outbox
from penstock.producer.wire.topics import bulk_topic
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.stage import ServedModel, StageCallbacks
from penstock.worker.enrichment.bounds_topic import BoundsTopic
from penstock.worker.enrichment.chunk_bounds import ChunkBounds
from penstock.worker.enrichment.chunk_results import plain_result
from penstock.worker.enrichment.chunker import Chunker
from penstock.worker.enrichment.output import Output
from penstock.worker.enrichment.output_delivery import OutputDelivery
from penstock.worker.enrichment.router import Router
from penstock.worker.enrichment.unprepared import UnpreparedRecords
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.commits import Committer
from penstock.worker.kafka.fetching.consumer import Consumer
from penstock.worker.kafka.fetching.group_member import GroupMember
from penstock.worker.kafka.fetching.rebalance_listener import Rebalanced
from penstock.worker.kafka.progress.offsets import OffsetTracker, Source
from penstock.worker.replies.delivery import Delivery
from penstock.worker.replies.outlet import AnswerDropped
from penstock.worker.replies.partial_replies import PartialReplies
from penstock.worker.replies.reply import encode_partial, encode_replies, result_rows
from penstock.worker.requests.fetch_buffer import FetchBuffer
from penstock.worker.requests.generation import GenerationRequests
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.requests.long_records import LongRecords
from penstock.worker.requests.preparation import RequestPreparer
from penstock.worker.requests.quarantine import Quarantine
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.reply_bounds import ReplyBounds
from penstock.worker.requests.request import PendingRequest, Rejection
from penstock.worker.requests.sequence_block import SequenceBlock, SequenceResults
from penstock.worker.requests.sequences import SequenceRequests
from penstock.worker.requests.validation import RequestValidator
from penstock.worker.requests.write_behind import WriteBehindCache
from penstock.worker.resolved_settings import ResolvedSettings
from penstock.worker.routes.schema_registry import SchemaRegistry
from penstock.worker.stop_signal import StopSignal, watched
from penstock.worker.telemetry.load_monitor import LoadMonitor
from penstock.worker.telemetry.metrics import Metrics
from penstock.worker.telemetry.traces import Traces
from penstock.worker.transactions.transactional_outbox import TransactionalOutbox

_TURNS = 4  # of the event loop between two batches of records: a reply takes several from the lane to its socket


class Pipeline:
    """Called on the worker's event loop. `Worker` starts, drains and stops what is public here."""

    def __init__(
        self,
        settings: ResolvedSettings,
        served: ServedModel,
        stop: StopSignal,
        revoked: Rebalanced,
        *,
        tokenizer: Tokenizer | None,
        cache: ResponseCache | None,
        traces: Traces,
        number: int,
    ) -> None:
        """`revoked`: see `Consumer`. All else: see `Worker`."""
        info = self._info = served.info
        self._tokenizer, self._traces, self._stop = tokenizer, traces, stop
        is_exactly_once = settings.delivery == "exactly_once"
        # Fetch
        requests = {} if settings.topic is None else {settings.topic: False, bulk_topic(settings.topic): True}
        routed = {route.input_topic: route.route_class == "bulk" for route in settings.route_parts}
        self.topics = requests | routed  # whether the records of each are bulk
        self.cluster = KafkaCluster.of(settings)
        self.backpressure = Backpressure(settings.max_in_flight, can_stall=not is_exactly_once)
        offsets = OffsetTracker()
        self.ledger = RecordLedger(
            self.backpressure, offsets, {topic for topic, is_bulk in self.topics.items() if is_bulk}
        )
        self.fetched = FetchBuffer(self.ledger, self.backpressure)
        self.consumer = Consumer(
            self.cluster,
            self.topics,
            GroupMember(settings.group_id, number, info.answers_revision, settings.fetch_max_wait_ms, settings.drain_s),
            received=self.fetched.put,
            revoked=revoked,
        )
        self.long = LongRecords(self.enqueue)
        self.bulk_task: asyncio.Task[None] | None = None  # enqueues bulk records
        # Validate, prepare, look up
        bounds = self._bounds = ReplyBounds(info, settings.max_reply_bytes)
        read_options, read_fields = served.read_options, served.read_fields
        languages = Languages() if tokenizer is None else tokenizer.languages
        generation = None if read_options is None else GenerationRequests(info, read_options, languages)
        cells = None if read_fields is None else SequenceRequests(info, read_fields, settings.max_reply_bytes)
        self._validator = RequestValidator(
            info,
            bounds,
            Prompts() if tokenizer is None else tokenizer.prompts,
            reply_topics=settings.reply_topics,
            slo_s=None if settings.slo_ms is None else settings.slo_ms / 1e3,
            max_sequences=settings.max_sequences,
            any_dimensions=settings.any_dimensions,
            generation=generation,
        )
        if settings.all_routes and tokenizer is None:
            raise WrongArgument(f"A route needs a model with a tokenizer: {info.name!r} has none.")
        chunker = None if tokenizer is None else Chunker(tokenizer, self._validator.checked, settings.max_sequences)
        has_registry = settings.schema_registry_url is not None
        self.registry = SchemaRegistry(settings.registry_client) if has_registry else None
        self._router = Router(settings.route_parts, info, self._validator.checked, self.registry, chunker)
        self._preparer = RequestPreparer(info, bounds, tokenizer, generation, cells, has_cache=cache is not None)
        self.cache = None if cache is None else WriteBehindCache(cache)
        # Batch, run
        # With exactly_once no partial reply is sent: in the transaction of the answer it would be readable no earlier
        # than that, and outside of it a reader with read_committed would see those of an owner that is fenced.
        partial_outbox = None if is_exactly_once else Outbox(self.cluster, client_id="penstock-worker-partial")
        self.partials = PartialReplies(partial_outbox, lambda one, result: encode_partial(one, result, info, tokenizer))
        callbacks = StageCallbacks(self._ran, self._computed, self._reject, stop.fail, self.partials.send)
        self.dispatcher, load, replied = served.stage(settings, callbacks)
        # Reply, commit
        self.outbox: Outbox | TransactionalOutbox
        self.committer: Committer | TransactionalOutbox
        if is_exactly_once:
            self.outbox = self.committer = TransactionalOutbox(self.cluster, self.consumer, offsets, settings)
        else:
            self.outbox = Outbox(self.cluster, client_id="penstock-worker")
            self.committer = Committer(offsets, self.consumer)
        self.unprepared: UnpreparedRecords
        is_assigned, num_aside = self.consumer.assigned.is_set, lambda: self.unprepared.num
        self.quarantine = Quarantine(self.committer, self.ledger, stop, is_assigned, num_aside)
        self.unprepared = UnpreparedRecords(self._router, self.quarantine.wait, self._process)
        self.metrics = Metrics(info, load, self.backpressure, self.ledger)
        self.metrics.show("penstock_skipped_offsets_total", lambda: self.consumer.num_skipped)
        self._delivery = Delivery(
            self.outbox,
            self.backpressure,
            self._acknowledged,
            replied,
            self.metrics.count,
            settings.group_id,
            number,
        )
        outlet, held = self.outbox, self.backpressure
        for topic in routed:
            self.metrics.count_route(topic, "ok", 0)  # shown from the start
        self._outputs = OutputDelivery(
            outlet, held, self._acknowledged, self.ledger.is_present, self.metrics, self._delivery
        )
        self.absent = self._outputs.absent
        self.metrics.show("penstock_held_outputs", self.absent.counts)
        chunked = [route for route in settings.all_routes if route.chunk_output == "records"]
        self._chunk_bounds = [BoundsTopic(self.cluster, route.output_topic) for route in chunked]
        for route, log in zip(chunked, self._chunk_bounds, strict=True):
            self._outputs.add_chunks(route.output_topic, ChunkBounds(log, is_shared=route.accept_replays))
        self.monitor = LoadMonitor(
            load,
            self.metrics,
            lag=lambda: offsets.lag(self.consumer.last_ends()),
            dead_letters=self._delivery.dead_letters,
        )
        self.num_answered = 0

    async def start_routes(self) -> None:
        """Check the schemas of routes, unless the registry is away, and connect to what else they need.

        Raises WrongArgument and KafkaRefused.
        """
        await self._router.check()
        await asyncio.gather(*[one.start() for one in self._chunk_bounds])

    async def stop_routes(self) -> None:
        """Disconnect from what routes need. What has not been sent is dropped."""
        self._outputs.close()
        await asyncio.gather(*[one.stop() for one in self._chunk_bounds])
        if self.registry is not None:
            await self.registry.close()

    # 1. Fetch

    async def turn(self) -> None:
        """Poll once. Online records are enqueued before the next poll, bulk records beside the turns that follow."""
        await self._stop.cut_short(self.fetched.fill(self.consumer))
        if self.fetched.can_take(bulk=True) and (self.bulk_task is None or self.bulk_task.done()):
            self.bulk_task = watched(self._take(bulk=True))
        await self._take(bulk=False)

    async def _take(self, *, bulk: bool) -> None:
        while self.fetched.can_take(bulk=bulk) and not self._stop.is_set():
            await self.quarantine.wait()
            records = self.fetched.take(bulk=bulk)
            self._router.admit(records)
            await self._process(self.unprepared.hold_back(records))
            for _ in range(_TURNS if self.fetched.can_take(bulk=bulk) else 0):
                await asyncio.sleep(0)

    async def _process(self, records: Sequence[PendingRecord]) -> None:
        if self.quarantine.trusts(records):
            await self._begin(records)
        else:
            await self.quarantine.run(records, self._begin)

    async def _begin(self, records: Sequence[PendingRecord]) -> None:
        """Enqueue admitted records, or leave a long one to `LongRecords`, if it can still be in time."""
        if not records or not records[0].is_long:
            await self.enqueue(records)
            return
        wait_s = self.long.wait_s(records[0])
        asked, _ = self._router.split(records)
        late = self._validator.reject_late(asked, time.monotonic(), time.time(), wait_s)
        self._reject(late)
        if not late:
            self.long.add(records[0])

    # 2. Validate, 3. prepare, 4. look up, 5. batch

    async def enqueue(self, records: Sequence[PendingRecord]) -> None:
        """Take admitted records to the batch queue. Some are answered on the way, with errors or from the cache."""
        asked, routed = self._router.split(records)
        now, unix_now = time.monotonic(), time.time()
        requests, invalid = self._validator.validate(asked, now, unix_now)
        self._reject(invalid)
        if routed:
            from_routes, unreadable, passed = self._router.validate(routed, now, unix_now)
            outputs, unplaced = self._router.passed(passed, self._outputs)
            self._reject([*unreadable, *unplaced])
            self._enrich(outputs)
            chunked, uncut = await self._router.chunk(from_routes)
            self._reject(uncut)
            requests += chunked
        blocks, unprepared = await self._preparer.prepare(requests)
        self._reject(unprepared)
        if blocks:
            hits, misses = await self._look_up(blocks)
            self._reply(hits, None)
            self.dispatcher.add(misses)
        if cancelled := [one.address for one in invalid if one.address and isinstance(one.error, Cancelled)]:
            self.dispatcher.cancel(cancelled)

    async def _look_up(self, blocks: list[SequenceBlock]) -> tuple[SequenceResults, list[SequenceBlock]]:
        self.ledger.queue([block.request for block in blocks if block.indices[0] == 0])
        prepared = time.monotonic()
        hits, misses = ([], blocks) if self.cache is None else await self.cache.look_up(blocks)
        blocks[0].request.times.note_stages(prepared, time.monotonic())
        self._traces.begin(blocks)
        if hits:
            self.metrics.from_cache.inc(sum([len(rows) for _, rows in hits]))
        return hits, misses

    # 6. Run: the dispatcher's lanes or steps, which then call these two

    def _ran(self, stats: BatchStats) -> None:
        self.monitor.batch_done(stats)

    def _computed(self, results: SequenceResults, stats: BatchStats) -> None:
        if self.cache is not None:
            self.cache.store(results)
        self._traces.batch_done(stats, results)
        self._reply(results, stats)

    # 7. Reply

    def _reply(self, results: SequenceResults, stats: BatchStats | None) -> None:
        """Store results of a batch, or without `stats` of the cache, and reply to the requests that they complete."""
        if not results:
            return
        now = time.monotonic()
        completed = [block.request for block, rows in results if block.settle(rows)]
        completed = self._reply_routes(completed, stats, now)
        values = encode_replies(completed, self._info, stats, now, self._tokenizer)
        if refused := self._bounds.refused(completed, values):
            self._reject(refused)
            is_kept = [not request.is_failed for request in completed]
            completed, values = list(compress(completed, is_kept)), list(compress(values, is_kept))
        self.ledger.answer([request.record for request in completed])
        self.monitor.answered(completed, stats, now)
        self._delivery.reply(completed, values)
        self.num_answered += len(completed)

    def _reply_routes(
        self, completed: list[PendingRequest], stats: BatchStats | None, now: float
    ) -> list[PendingRequest]:
        """Send the enriched records of routes. Returns the requests that want a reply."""
        routed = [request for request in completed if self._router.has(request.record)]
        if not routed:
            return completed
        rows = [plain_result(one, result_rows(one, self._info, self._tokenizer)) for one in routed]
        outputs, rejections = self._router.outputs(routed, rows, self._outputs)
        self._reject(rejections)
        self.monitor.answered([request for request in routed if not request.is_failed], stats, now)
        self._enrich(outputs)
        return [request for request in completed if not self._router.has(request.record)]

    def _enrich(self, outputs: Sequence[Output]) -> None:
        """Send enriched records, each after those of its key that came before it."""
        self._leave(self._router.order.finish([(output.origin, output) for output in outputs]))

    def _leave(self, finished: tuple[Sequence[Output], Sequence[PendingRecord]]) -> None:
        leaving, given_up = finished
        self.ledger.answer([output.origin for output in leaving])
        self.ledger.give_up(given_up)
        self._outputs.send(leaving)
        self.num_answered += len(leaving)

    def _reject(self, rejections: Sequence[Rejection]) -> None:
        """Send the error replies and dead letters of records that are at fault, late or refused, at any step."""
        if not rejections:
            return
        routed = [one.record for one in rejections if self._router.has(one.record)]
        if routed:  # they have no reply topic, but an output topic, which is not for errors
            rejections = [one._replace(address=None) if self._router.has(one.record) else one for one in rejections]
        self.ledger.answer([rejection.record for rejection in rejections])
        self.monitor.rejected([rejection.error for rejection in rejections])
        self._traces.rejected(rejections)
        self._delivery.reject(rejections)
        if routed:
            self._outputs.count_rejected([one for one in rejections if self._router.has(one.record)])
            self._leave(self._router.order.finish([(record, None) for record in routed]))

    def give_up(self, records: Sequence[PendingRecord]) -> None:
        """Admitted records of partitions that are being revoked: the next owner reads them, and those behind, again."""
        self.ledger.give_up([*records, *self._router.order.give_up(records)])

    def forget(self, sources: set[Source]) -> None:
        """These partitions were revoked."""
        self.ledger.forget(sources)
        self._router.order.forget(sources)

    async def withdraw_outputs(self, timeout_s: float) -> bool:
        """Called after `forget`: send no more enriched records of those partitions, as the next owner sends newer ones.

        Waits for those that are on their way. Returns false if some are left after `timeout_s`. With exactly_once they
        are in transactions that are never committed.
        """
        is_present = self.ledger.is_present
        return isinstance(self.outbox, TransactionalOutbox) or await self.outbox.withdraw(
            lambda one: isinstance(one, Output) and not is_present(one.origin), AnswerDropped(), timeout_s
        )

    # 8. Commit

    def _acknowledged(self, records: Sequence[PendingRecord]) -> None:
        """The broker has what these records are owed. `committer` commits their offsets with the next prefix.

        Or their partition was given up, and their answers dropped: it commits nothing of it any more.
        """
        self.ledger.acknowledge(records)
        self._traces.ended(records)
