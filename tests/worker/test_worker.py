"""A whole worker in one process: real stages over a null engine, and fakes for Kafka that follow a script."""

import asyncio
import contextlib
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException
from structlog.testing import capture_logs

from penstock.cache import ResponseCache
from penstock.engine import NullEngine
from penstock.engine.types import BatchOutput, PackedBatch
from penstock.producer.transport.outbox import OutRecord
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.headers import CANCEL, CORRELATION_ID, request_headers
from penstock.producer.wire.messages import Request, join_tokens
from penstock.scheduler import LearnedCost, fit_cost_table
from penstock.worker import WorkerSettings, pipeline, process
from penstock.worker import worker as worker_module
from penstock.worker.batching.batch import BatchStats
from penstock.worker.batching.encoder_model import EncoderModel
from penstock.worker.end_of_topics import EndOfTopics
from penstock.worker.kafka.fetching import consumer
from penstock.worker.requests.long_records import LongRecords
from penstock.worker.requests.preparation import RequestPreparer
from penstock.worker.requests.quarantine import Quarantine
from penstock.worker.requests.record import PendingRecord, RecordState
from penstock.worker.requests.request import Rejection
from penstock.worker.requests.sequence_block import SequenceBlock, SequenceResults
from penstock.worker.resolved_settings import resolve
from penstock.worker.telemetry.traces import NO_TRACES, NoTraces, Traces
from penstock.worker.worker import Worker

A, B = TopicPartition("penstock.requests.tiny", 0), TopicPartition("penstock.requests.tiny", 1)
TAKEN_RECORDS = 256  # online records that are processed at once
MakeRecord = Callable[..., Any]
Fetched = dict[TopicPartition, list[Any]]
Step = Callable[[], Awaitable[Fetched]]


class FakeConsumer:
    """aiokafka's consumer: each `getmany` is the next step of `script`, whose end stops the worker."""

    def __init__(self) -> None:
        self.script: list[Step] = []
        self.at_end: Callable[[], object] = lambda: None
        self.owned = frozenset[TopicPartition]()
        self.committed_offset = 0  # of every partition
        self.commits: list[dict[TopicPartition, tuple[int, str]]] = []
        self.sought: list[tuple[TopicPartition, int]] = []
        self._is_open = False
        self.coordinator_answers = asyncio.Event()
        self.coordinator_answers.set()
        self.member_id, self.is_evicted, self.client = "", False, self

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def get_random_node(self) -> int:
        return 1

    async def send(self, *_: object) -> None:
        raise NotImplementedError  # as aiokafka where a broker has no ids of topics

    def subscribe(self, _: list[str], *, listener: Any) -> None:
        self._listener = listener

    async def getmany(self, *_: TopicPartition, timeout_ms: int) -> Fetched:
        if not self.owned:
            await self.rebalance({A, B})
        if self.script:
            return await self.script.pop(0)()
        self.at_end()
        await asyncio.sleep(0)
        return {}

    def assignment(self) -> list[TopicPartition]:
        return sorted(self.owned)

    def partitions_for_topic(self, _: str) -> set[int]:
        return {0, 1}

    def highwater(self, _: TopicPartition) -> None: ...

    def pause(self, *_: TopicPartition) -> None: ...

    def resume(self, *_: TopicPartition) -> None:
        self._is_open = True

    def rejoin_if_stuck(self) -> None: ...

    async def fetch_committed(self, sources: set[TopicPartition]) -> dict[TopicPartition, tuple[int, str]]:
        await self.coordinator_answers.wait()
        return dict.fromkeys(sources, (self.committed_offset, ""))

    async def commit(self, offsets: dict[TopicPartition, tuple[int, str]]) -> None:
        self.commits.append(offsets)

    @property
    def progress(self) -> list[dict[TopicPartition, tuple[int, str]]]:
        """The commits that moved an offset. A commit before the first record of a partition marks its owner."""
        return [
            commit for commit in self.commits if any(offset > self.committed_offset for offset, _ in commit.values())
        ]

    async def committed(self, _: TopicPartition) -> int:
        return self.committed_offset

    def seek(self, source: TopicPartition, offset: int) -> None:
        self.sought.append((source, offset))

    async def rebalance(self, owned: set[TopicPartition]) -> None:
        await self._listener.on_partitions_revoked(self.owned)
        self.owned, self._is_open = frozenset(owned), False
        await self._listener.on_partitions_assigned(self.owned)
        while not self._is_open:  # noqa: ASYNC110 — as aiokafka, it has no records while its partitions are paused
            await asyncio.sleep(0)


class FakeOutbox:
    """Acknowledges each record in the next turn of the event loop, and keeps topics and correlation ids."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, bytes | None]] = []

    async def start(self) -> None: ...

    async def stop(self, _: float) -> None: ...

    async def partitions(self, _: str) -> int:
        return 1

    async def withdraw(self, *_: object) -> bool:
        return True

    def put(self, topic: str, _: int | None, records: Sequence[OutRecord]) -> None:
        for record in records:
            self.sent.append((topic, dict(record.headers).get(CORRELATION_ID)))
            asyncio.get_running_loop().call_soon(record.done, [record], None)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeConsumer:
    fake = FakeConsumer()
    monkeypatch.setattr(consumer, "make_member", lambda *_, **__: fake)
    monkeypatch.setattr(consumer, "_RETRY_S", 0.0)
    return fake


@pytest.fixture
def outbox(monkeypatch: pytest.MonkeyPatch) -> FakeOutbox:
    async def no_topics(*_: object) -> None: ...

    fake = FakeOutbox()
    monkeypatch.setattr(pipeline, "Outbox", lambda *_, **__: fake)
    monkeypatch.setattr(worker_module, "create_topics", no_topics)
    return fake


@contextlib.asynccontextmanager
async def make_worker(
    kafka: FakeConsumer,
    engine: NullEngine | None = None,
    cache: ResponseCache | None = None,
    tokenizer: Any = None,
    traces: Traces = NO_TRACES,
    **given: Any,
) -> AsyncIterator[Worker]:
    """A worker that runs when the test awaits `run`, up to the end of the script."""
    engine = engine or NullEngine(name="tiny")
    settings = resolve(WorkerSettings(model="null", lanes=1, **given), engine.info)
    cost = LearnedCost(fit_cost_table([((8,), 1e-3)], padded=False))
    async with contextlib.AsyncExitStack() as stack:
        served = EncoderModel(engine, 1, cost)
        stack.push_async_callback(served.close, 5.0)
        worker = Worker(settings, served, tokenizer=tokenizer, cache=cache, traces=traces)
        kafka.at_end = worker.stop
        yield worker


@pytest.fixture
async def worker(kafka: FakeConsumer, outbox: FakeOutbox) -> AsyncIterator[Worker]:
    async with make_worker(kafka) as worker:
        yield worker


class SlowEngine(NullEngine):
    """Runs a batch when the test lets it."""

    def __init__(self) -> None:
        super().__init__(name="tiny")
        self.began = threading.Event()
        self.may_run = threading.Event()

    def run(self, batch: PackedBatch) -> BatchOutput:
        self.began.set()
        self.may_run.wait(60)
        return super().run(batch)


@pytest.fixture
async def cache(tmp_path: Path) -> AsyncIterator[ResponseCache]:
    path = tmp_path / "cache.db"
    async with await ResponseCache(path, max_bytes=1 << 20, ttl_s=60, look_up_s=30.0, lock_s=30.0).open() as cache:
        yield cache


class CountingEngine(NullEngine):
    """Counts the sequences that it computes, and fails on those with a certain token."""

    def __init__(self, dim: int = 8, fails_on: int | None = None) -> None:
        super().__init__(dim, name="tiny")
        self.fails_on = fails_on
        self.num_computed = 0

    def run(self, batch: PackedBatch) -> BatchOutput:
        if self.fails_on in batch.token_ids:
            raise ValueError("a token that fails")
        self.num_computed += len(batch.options)
        return super().run(batch)


def request(make_record: MakeRecord, source: TopicPartition, offset: int, **changes: Any) -> Any:
    """A valid request whose correlation id names its partition and offset."""
    fields = {
        "value": encode_request(Request("tiny", "embed", tokens=join_tokens([[1, 2, offset + 1]]))),
        "headers": request_headers(b"%d-%d" % (source.partition, offset), "penstock.replies", 0, None),
    }
    return make_record(offset=offset, partition=source.partition, **fields | changes)


def held(worker: Worker) -> float | None:
    return worker.metrics.registry.get_sample_value("penstock_unfinished_records")


def polled(*records: Any) -> Step:
    """A step in which the consumer returns these records."""

    async def step() -> Fetched:
        found: Fetched = {}
        for record in records:
            found.setdefault(TopicPartition(record.topic, record.partition), []).append(record)
        return found

    return step


def once_answered(outbox: FakeOutbox, count: int, *records: Any) -> Step:
    """As `polled`, after that many answers."""

    async def step() -> Fetched:
        while len(outbox.sent) < count:  # noqa: ASYNC110 — the outbox has no event
            await asyncio.sleep(0.001)
        return await polled(*records)()

    return step


async def unreadable() -> Fetched:
    raise CorruptRecordException("Invalid CRC")


async def test_records_are_answered_and_committed(
    kafka: FakeConsumer, outbox: FakeOutbox, worker: Worker, make_record: MakeRecord
) -> None:
    bad = request(make_record, A, 1, value=b"bad")
    kafka.script = [polled(request(make_record, A, 0), bad), polled(request(make_record, A, 2))]
    assert await worker.run() == 0
    assert sorted(outbox.sent, key=str) == [
        ("penstock.replies", b"0-0"),
        ("penstock.replies", b"0-1"),
        ("penstock.replies", b"0-2"),
        ("penstock.requests.tiny.dead-letter", b"0-1"),
    ]
    assert kafka.commits[-1] == {A: (3, "")}
    assert held(worker) == 0


@pytest.mark.parametrize(("at_end", "code"), [(True, 0), (False, 1)])
async def test_with_once_a_worker_succeeds_only_at_the_end_of_its_topics(
    kafka: FakeConsumer,
    outbox: FakeOutbox,
    make_record: MakeRecord,
    monkeypatch: pytest.MonkeyPatch,
    at_end: bool,
    code: int,
) -> None:
    """Stopped before, it has read and answered what it has, and does not know what else there is."""

    async def is_reached(_: EndOfTopics) -> bool:
        return at_end and bool(outbox.sent)

    monkeypatch.setattr(EndOfTopics, "is_reached", is_reached)
    async with make_worker(kafka, once=True) as worker:
        kafka.script = [polled(request(make_record, A, 0)), once_answered(outbox, 1)]
        assert await worker.run() == code
    assert outbox.sent == [("penstock.replies", b"0-0")]


class ToldTraces(NoTraces):
    """Notes the stages of each record, by its offset."""

    def __init__(self) -> None:
        self.told: dict[int, list[str]] = {}

    def note(self, stage: str, records: Sequence[PendingRecord]) -> None:
        for record in records:
            self.told.setdefault(record.original.offset, []).append(stage)

    def begin(self, sequences: Sequence[SequenceBlock]) -> None:
        assert all(one.request.record.state is RecordState.QUEUED for one in sequences)
        assert all(one.request.times.tokenize_ms > 0 for one in sequences)
        self.note("begin", [one.request.record for one in sequences])

    def batch_done(self, stats: BatchStats, results: SequenceResults) -> None:
        self.note("batch", [one.request.record for one, _ in results])

    def rejected(self, rejections: Sequence[Rejection]) -> None:
        self.note("rejected", [one.record for one in rejections])

    def ended(self, records: Sequence[PendingRecord]) -> None:
        self.note("ended", records)


async def test_traces_metrics_and_the_log_are_told_of_every_stage(
    kafka: FakeConsumer, outbox: FakeOutbox, cache: ResponseCache, make_record: MakeRecord
) -> None:
    traces, first = ToldTraces(), request(make_record, A, 0)
    bad, again = request(make_record, A, 1, value=b"bad"), request(make_record, A, 2, value=first.value)
    text = request(make_record, A, 3, value=encode_request(Request("tiny", "embed", text=("there is no tokenizer",))))
    kafka.script = [polled(first, bad), once_answered(outbox, 3, again, text)]
    with capture_logs() as logs:
        async with make_worker(kafka, cache=cache, traces=traces) as worker:
            assert await worker.run() == 0
    value = worker.metrics.registry.get_sample_value
    refused = ["rejected", "ended"]
    assert traces.told == {0: ["begin", "batch", "ended"], 1: refused, 2: ["begin", "ended"], 3: refused}
    assert value("penstock_tokens_total") == 3
    assert value("penstock_sequences_total", {"source": "cache"}) == 1
    assert value("penstock_request_seconds_count", {"class": "online"}) == 2
    outcomes = ("ok", "invalid_request", "unsupported_task")
    assert [value("penstock_requests_total", {"outcome": code}) for code in outcomes] == [2, 1, 1]
    assert (logs[-1]["event"], logs[-1]["answered"]) == ("stopped", 2)


async def test_a_cancellation_is_answered_and_handed_on_behind_the_requests_that_came_with_it(
    kafka: FakeConsumer, outbox: FakeOutbox, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    taken_back = request(make_record, A, 0)
    kafka.script = [polled(taken_back, make_record(b"", offset=1, headers=[*taken_back.headers, (CANCEL, b"")]))]
    async with make_worker(kafka, drain_s=0.05) as worker:
        monkeypatch.setattr(worker.pipeline.dispatcher, "add", lambda sequences: calls.append(sequences))
        monkeypatch.setattr(worker.pipeline.dispatcher, "cancel", lambda addresses: calls.append(addresses))
        assert await worker.run() == 0
    [[_], [address]] = calls
    assert (address.topic, address.correlation_id) == ("penstock.replies", b"0-0")
    assert outbox.sent == [("penstock.replies", b"0-0")]


async def test_replies_have_turns_of_the_event_loop_between_records_that_are_taken_together(
    kafka: FakeConsumer, outbox: FakeOutbox, worker: Worker, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    async def enqueue(records: Sequence[PendingRecord]) -> None:
        events.append("enqueued")
        asyncio.get_running_loop().call_soon(events.append, "turn")
        worker.pipeline.ledger.give_up(records)

    monkeypatch.setattr(worker.pipeline, "enqueue", enqueue)
    kafka.script = [polled(*[request(make_record, A, offset) for offset in range(TAKEN_RECORDS + 1)])]
    # The first of a partition wait for a commit, and so for the event loop.
    monkeypatch.setattr(Quarantine, "trusts", lambda *_: True)
    assert await worker.run() == 0
    assert events[:4] == ["enqueued", "turn", "enqueued", "turn"]


async def test_no_record_is_admitted_while_a_suspect_runs_alone(
    kafka: FakeConsumer, outbox: FakeOutbox, worker: Worker, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, ended = asyncio.Event(), asyncio.Event()

    async def wait(_: Quarantine) -> None:
        waiting.set()
        await ended.wait()

    monkeypatch.setattr(Quarantine, "wait", wait)
    kafka.script = [polled(request(make_record, A, 0))]
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(waiting.wait(), 60)
    assert (held(worker), worker.pipeline.ledger.num_unfinished) == (1, 0)
    ended.set()
    assert await asyncio.wait_for(running, 60) == 0
    assert outbox.sent == [("penstock.replies", b"0-0")]


async def test_what_was_polled_as_its_partition_was_revoked_is_left_to_the_next_owner(
    kafka: FakeConsumer, outbox: FakeOutbox, worker: Worker, make_record: MakeRecord
) -> None:
    rebalances: list[asyncio.Task[None]] = []

    async def revoked_at_once() -> Fetched:
        rebalances.append(asyncio.create_task(kafka.rebalance({B})))  # runs after the first that are taken
        return {A: [request(make_record, A, offset) for offset in range(TAKEN_RECORDS + 1)]}

    async def after_it() -> Fetched:  # as aiokafka, which hands out nothing in a rebalance
        await asyncio.gather(*rebalances)
        return {}

    kafka.script = [revoked_at_once, after_it]
    assert await worker.run() == 0
    assert len(outbox.sent) == TAKEN_RECORDS
    assert (kafka.progress, held(worker)) == ([{A: (TAKEN_RECORDS, "")}], 0)


async def test_what_was_polled_of_one_partition_is_left_when_a_rebalance_comes_with_the_next(
    kafka: FakeConsumer, outbox: FakeOutbox, worker: Worker, make_record: MakeRecord
) -> None:
    """After an error each partition is polled alone, and the second poll may wait for a rebalance."""

    async def of_b() -> Fetched:
        await kafka.rebalance({B})
        return {B: [request(make_record, B, 2)]}

    kafka.script = [unreadable, polled(request(make_record, A, 7)), of_b]
    assert await worker.run() == 0
    assert outbox.sent == [("penstock.replies", b"1-2")]
    assert (kafka.progress, held(worker)) == ([{B: (3, "")}], 0)


async def test_a_partition_that_comes_back_is_sought_back_to_the_groups_offset(
    kafka: FakeConsumer, outbox: FakeOutbox, worker: Worker, make_record: MakeRecord
) -> None:
    """Not to the end of what was polled of it before and released: what lies between would be lost."""

    async def of_b() -> Fetched:
        kafka.sought.clear()
        await kafka.rebalance({A})
        return {}

    kafka.script = [unreadable, polled(request(make_record, A, 7)), of_b, unreadable, polled()]
    kafka.committed_offset = 3
    assert await worker.run() == 0
    assert kafka.sought == [(A, 3)] * 2  # at the assignment, and after the error
    assert outbox.sent == []


async def test_a_stage_that_raises_ends_the_worker_at_once(
    kafka: FakeConsumer, outbox: FakeOutbox, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its records can never finish, so that no drain waits for them: the group gets the partitions at once."""

    async def broken(*_: object) -> None:
        raise ValueError("stage")

    monkeypatch.setattr(RequestPreparer, "prepare", broken)
    kafka.script = [polled(request(make_record, A, 0))]
    async with make_worker(kafka, drain_s=600) as worker:
        with pytest.raises(ValueError, match="stage"):
            await asyncio.wait_for(worker.run(), 60)  # far below the drain
    assert kafka.progress == []


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The tokenizer never ends. Set when it begins."""
    begun = asyncio.Event()

    async def prepare(*_: object) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(RequestPreparer, "prepare", prepare)
    return begun


def long_request(make_record: MakeRecord, source: TopicPartition, offset: int, **changes: Any) -> Any:
    value = encode_request(Request("tiny", "embed", tokens=join_tokens([[1] * 30_000])))
    return request(make_record, source, offset, value=value, **changes)


async def test_a_long_text_that_would_wait_beyond_its_deadline_is_refused_when_it_comes(
    kafka: FakeConsumer, outbox: FakeOutbox, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the deadlines bound the memory that long texts hold while they wait."""
    monkeypatch.setattr(LongRecords, "wait_s", lambda *_: 600.0)
    kafka.script = [polled(long_request(make_record, A, 0))]
    async with make_worker(kafka, slo_ms=60_000.0) as worker:
        assert await worker.run() == 0
        refused = worker.metrics.registry.get_sample_value("penstock_overload_refusals_total")
    assert (outbox.sent, refused, kafka.progress) == ([("penstock.replies", b"0-0")], 1, [{A: (1, "")}])


@pytest.mark.parametrize(("topic", "num_held"), [(A.topic, 0), (f"{A.topic}.bulk", 1)])  # of bulk, that in the task
async def test_a_text_that_is_still_tokenized_after_the_drain_is_left_to_others(
    kafka: FakeConsumer, outbox: FakeOutbox, make_record: MakeRecord, endless: asyncio.Event, topic: str, num_held: int
) -> None:
    async def begun() -> Fetched:
        await endless.wait()
        return {}

    kafka.script = [polled(*[long_request(make_record, A, offset, topic=topic) for offset in range(2)]), begun]
    before = asyncio.all_tasks()
    async with make_worker(kafka, drain_s=0.05) as worker:
        assert await worker.run() == 0
        await asyncio.sleep(0)
        assert endless.is_set()
        assert asyncio.all_tasks() - before == set()
        assert (held(worker), outbox.sent, kafka.progress) == (num_held, [], [])


async def test_a_rebalance_takes_long_texts_from_the_tokenizer(
    kafka: FakeConsumer, outbox: FakeOutbox, make_record: MakeRecord, endless: asyncio.Event
) -> None:
    """A worker that went on with them would answer what is the next owner's."""

    async def revoked() -> Fetched:
        await asyncio.wait_for(endless.wait(), 60)
        await asyncio.wait_for(kafka.rebalance({B}), 60)
        assert held(owner) == 0
        return {}

    kafka.script = [polled(*[long_request(make_record, A, offset) for offset in range(3)]), revoked]
    async with make_worker(kafka, drain_s=0.05) as owner:
        assert await owner.run() == 0
    assert (outbox.sent, kafka.progress) == ([], [])


async def test_a_rebalance_waits_for_batches_that_have_begun_and_not_for_requests_that_wait_for_one(
    kafka: FakeConsumer, outbox: FakeOutbox, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "_REBALANCE_S", 0.1)
    engine = SlowEngine()

    async def revoked() -> Fetched:
        await asyncio.to_thread(engine.began.wait, 60)
        before = held(owner)
        rebalancing = asyncio.create_task(kafka.rebalance({A}))
        async with asyncio.timeout(300):  # far below the drain
            while held(owner) == before:  # noqa: ASYNC110 -- until those that wait for a batch are given up
                await asyncio.sleep(0.001)
            engine.may_run.set()
            await rebalancing
        assert held(owner) == 0
        return {}

    one_by_one: dict[str, Any] = {"max_batch_sequences": 1, "trigger": "hungry", "drain_s": 600}
    kafka.script = [polled(*[request(make_record, A, offset) for offset in range(20)]), revoked]
    async with make_worker(kafka, engine, **one_by_one) as owner:
        assert await owner.run() == 0
    assert [topic for topic, _ in outbox.sent] == ["penstock.replies"] * len(outbox.sent)
    assert 1 <= len(outbox.sent) < 20  # the next owner reads the rest
    assert kafka.progress[-1] == {A: (len(outbox.sent), "")}


async def test_after_a_revocation_nothing_of_the_partitions_counts_and_batches_fill_up_again(
    kafka: FakeConsumer, outbox: FakeOutbox, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    drains: list[str] = []
    unfinished: list[int] = []
    monkeypatch.setattr(outbox, "put", lambda topic, *_: outbox.sent.append((topic, None)))  # never acknowledged

    async def revoked() -> Fetched:
        await once_answered(outbox, 1)()
        unfinished.append(owner.pipeline.ledger.num_unfinished)
        await kafka.rebalance({B})
        unfinished.append(owner.pipeline.ledger.num_unfinished)
        return {}

    kafka.script = [polled(request(make_record, A, 0)), revoked]
    async with make_worker(kafka, drain_s=0.05) as owner:
        for name in ("drain", "resume"):
            monkeypatch.setattr(owner.pipeline.dispatcher, name, functools.partial(drains.append, name))
        assert await owner.run() == 0
    assert unfinished == [1, 0]
    assert drains == ["drain", "resume", "drain"]  # the last one at the end


async def test_a_batch_that_outlasts_the_drain_leaves_no_mark(
    kafka: FakeConsumer, outbox: FakeOutbox, make_record: MakeRecord
) -> None:
    """The next owner would take the worker to have died of it."""
    engine = SlowEngine()

    async def begun() -> Fetched:
        await asyncio.to_thread(engine.began.wait, 60)
        return {}

    kafka.script = [polled(request(make_record, A, 0)), begun]
    async with make_worker(kafka, engine, drain_s=0.05) as worker:
        assert await worker.run() == 0
        engine.may_run.set()
    assert kafka.commits[0][A][1] != ""  # marked before it ran
    assert kafka.commits[-1] == {A: (0, "")}


async def test_a_worker_is_ready_when_records_of_its_assignment_can_come(
    kafka: FakeConsumer, outbox: FakeOutbox, worker: Worker
) -> None:
    reasons: list[str] = []

    def look() -> None:
        reasons.append(process._not_ready(worker))

    async def wait_for_offsets(owned: set[TopicPartition]) -> None:
        kafka.coordinator_answers.clear()
        rebalance = asyncio.create_task(kafka.rebalance(owned))
        for _ in range(20):
            await asyncio.sleep(0)
        look()  # the committed offsets are not known
        kafka.coordinator_answers.set()
        await rebalance
        await asyncio.sleep(0)
        look()

    async def steps() -> Fetched:
        look()
        await wait_for_offsets({A})
        await wait_for_offsets({B})
        return {}

    async def spare() -> Fetched:
        await kafka.rebalance(set())
        await asyncio.sleep(0)
        look()
        worker.stop()
        look()
        return {}

    kafka.script = [steps, spare]
    look()
    kafka.member_id = "penstock-worker-000"  # Kafka names a member before the group is balanced
    assert await worker.run() == 0
    waiting = "its partitions are being assigned"
    assert reasons == ["not in the consumer group", "", waiting, "", waiting, "", "", "draining"]


async def test_equal_sequences_are_computed_once_in_whatever_class_and_whenever_they_come(
    kafka: FakeConsumer, outbox: FakeOutbox, cache: ResponseCache, make_record: MakeRecord
) -> None:
    """In flight together, before the result is written, and after."""
    engine = CountingEngine()
    first = request(make_record, A, 0)
    bulk = [("penstock-class", b"bulk")]
    same = [
        request(make_record, A, offset, value=first.value, headers=[*first.headers, *(bulk if offset % 2 else [])])
        for offset in range(1, 8)
    ]
    kafka.script = [
        polled(first, *same[:3]),
        polled(*same[3:5]),
        once_answered(outbox, 1, same[5]),
        once_answered(outbox, 7, same[6]),
    ]
    async with make_worker(kafka, engine, cache) as worker:
        assert await worker.run() == 0
    assert (engine.num_computed, len(outbox.sent)) == (1, 8)


async def test_an_error_is_never_cached(
    kafka: FakeConsumer, outbox: FakeOutbox, cache: ResponseCache, make_record: MakeRecord
) -> None:
    engine = CountingEngine(fails_on=1)
    again = request(make_record, A, 2, value=request(make_record, A, 0).value)

    async def mended() -> Fetched:
        await once_answered(outbox, 2)()  # the error reply and the dead letter
        engine.fails_on, engine.num_computed = None, 0
        return await polled(again)()

    kafka.script = [polled(request(make_record, A, 0)), mended]
    async with make_worker(kafka, engine, cache) as worker:
        assert await worker.run() == 0
    assert engine.num_computed == 1
    assert [topic for topic, _ in outbox.sent].count("penstock.replies") == 2
    assert (cache.stats.hits, cache.stats.misses) == (0, 2)


async def test_results_of_another_revision_of_the_model_are_not_taken_from_the_cache(
    kafka: FakeConsumer, outbox: FakeOutbox, cache: ResponseCache, make_record: MakeRecord
) -> None:
    engines = [CountingEngine(dim) for dim in (8, 16, 8)]
    for offset, engine in enumerate(engines):
        kafka.script = [polled(request(make_record, A, offset, value=request(make_record, A, 0).value))]
        kafka.owned = frozenset()
        async with make_worker(kafka, engine, cache) as worker:
            assert await worker.run() == 0
    assert [engine.num_computed for engine in engines] == [1, 1, 0]
    assert len(outbox.sent) == 3
