"""Topics that are deleted and created again under their names: every record is answered, and no key comes twice."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgpack
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic, RecordsToDelete
from aiokafka.errors import TopicAlreadyExistsError

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client
from penstock.producer.wire.headers import CORRELATION_ID, REPLY_TOPIC
from penstock.producer.wire.topics import dead_letter_topic, request_topic
from tests.integration.conftest import StartWorker, Unique, WorkerProcess, letters_of, open_admin, reader_of
from tests.integration.echo_worker import POISON

MODES = pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])


class Desk:
    """The topics of a model, of one partition each, and a sender and a reader of another library's kind."""

    def __init__(
        self,
        admin: AIOKafkaAdminClient,
        producer: AIOKafkaProducer,
        broker: KafkaBroker,
        start_worker: StartWorker,
        model: str,
    ) -> None:
        self.broker = broker
        self.model = model
        self._start_worker = start_worker
        self.topic = request_topic(model)
        self.group = f"penstock.{model}"
        self.source = TopicPartition(self.topic, 0)
        self.replies = f"penstock.replies.{model}"
        self.admin = admin
        self._producer = producer
        self._num_sent = 0

    async def create(self, topic: str) -> None:
        """Create a topic of one partition; one of that name may still be being deleted."""
        async with asyncio.timeout(300):
            while True:
                with contextlib.suppress(TopicAlreadyExistsError):
                    await self.admin.create_topics([NewTopic(topic, 1, 1)])
                    return
                await asyncio.sleep(0.02)

    def start_worker(self, delivery: str = "at_least_once") -> WorkerProcess:
        return self._start_worker(self.broker, served_name=self.model, delivery=delivery)

    async def recreate(self, topic: str) -> None:
        await self.admin.delete_topics([topic])
        await self.create(topic)

    async def send(self, num: int, token: int = 1, own: Sequence[tuple[str, bytes]] = ()) -> None:
        """Requests of distinct correlation ids; a broker may not know a new topic yet."""
        ids, lens = struct.pack("<2I", token, 5), struct.pack("<I", 2)
        value = msgpack.packb({"v": 1, "model": self.model, "task": "embed", "ids": ids, "lens": lens})
        for _ in range(num):
            headers = [(CORRELATION_ID, b"%d" % self._num_sent), (REPLY_TOPIC, self.replies.encode()), *own]
            await self._producer.send_and_wait(self.topic, value, partition=0, headers=headers)
            self._num_sent += 1

    async def read(self, topic: str, num: int) -> Sequence[Any]:
        """The records of a topic, once there are so many, and those that come within a second after."""
        found: list[Any] = []
        reader = reader_of(self.broker, topic, isolation_level="read_committed")
        async with reader:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(300):
                    while len(found) < num:
                        found.append(await reader.getone())
            while more := await reader.getmany(timeout_ms=1000):
                found += [record for some in more.values() for record in some]
        return found

    async def answered(self, num: int) -> Sequence[Any]:
        """The replies to the requests so far: each once, with a key of its own."""
        found = await self.read(self.replies, num)
        ids = [int(dict(record.headers)[CORRELATION_ID]) for record in found]
        assert sorted(ids) == list(range(num))
        assert len({record.key for record in found}) == num
        return found

    async def commit(self) -> Any:
        return (await self.admin.list_consumer_group_offsets(self.group)).get(self.source)

    async def until_committed(self, offset: int) -> Any:
        async with asyncio.timeout(300):
            while (commit := await self.commit()) is None or commit.offset != offset:  # noqa: ASYNC110 — it asks the broker
                await asyncio.sleep(0.1)
        return commit


@pytest.fixture
async def desk(kafka: KafkaBroker, unique: Unique, start_worker: StartWorker) -> AsyncIterator[Desk]:
    async with (
        open_admin(kafka) as admin,
        AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer,
    ):
        made = Desk(admin, producer, kafka, start_worker, unique("recreated"))
        for topic in (made.topic, made.replies):
            await made.create(topic)
        yield made


@MODES
async def test_a_topic_that_is_recreated_under_a_worker_is_answered_whole(desk: Desk, delivery: str) -> None:
    worker = await desk.start_worker(delivery).ready()
    await desk.send(5)
    await desk.until_committed(5)
    await desk.recreate(desk.topic)
    await desk.send(40)
    await desk.answered(45)
    assert (await worker.event("topic_recreated"))["topic"] == desk.topic
    await desk.until_committed(40)


@MODES
async def test_a_topic_that_is_recreated_without_a_worker_is_answered_whole(desk: Desk, delivery: str) -> None:
    """The commit of the old topic is there, and within the new one: it names the topic that it is of."""
    worker = await desk.start_worker(delivery).ready()
    await desk.send(20)
    await desk.until_committed(20)
    await worker.stop()
    commit = await desk.commit()
    await desk.recreate(desk.topic)
    await desk.send(60)
    servers, options = desk.broker.bootstrap_servers, {"group_id": desk.group, "enable_auto_commit": False}
    async with AIOKafkaConsumer(bootstrap_servers=servers, **options) as other:
        other.assign([desk.source])
        await other.commit({desk.source: commit})
    worker = desk.start_worker(delivery)
    await desk.answered(80)
    assert (await worker.event("commit_of_deleted_topic"))["offset"] == 20


@MODES
async def test_requests_that_kafka_has_deleted_unread_are_counted(desk: Desk, delivery: str) -> None:
    worker = await desk.start_worker(delivery).ready()
    await desk.send(10)
    await desk.until_committed(10)
    await worker.stop()
    assert worker.events("offsets_skipped") == []
    await desk.send(90)
    await desk.admin.delete_records({desk.source: RecordsToDelete(90)})
    worker = desk.start_worker(delivery)
    skipped = await worker.event("offsets_skipped")
    told = {"partition": f"{desk.topic}-0", "cause": "deleted", "first": 10, "last": 89, "num": 80}
    assert told.items() <= skipped.items()
    await desk.until_committed(100)
    assert len(await desk.read(desk.replies, 20)) == 20
    assert len(worker.events("offsets_skipped")) == 1


@MODES
async def test_answers_reach_reply_and_dead_letter_topics_that_are_recreated(desk: Desk, delivery: str) -> None:
    letters = dead_letter_topic(desk.topic)
    await desk.create(letters)
    await desk.start_worker(delivery).ready()
    await desk.send(3)
    await desk.send(2, POISON)
    await desk.until_committed(5)
    for topic in (desk.replies, letters):
        await desk.recreate(topic)
    await desk.send(3)
    await desk.send(2, POISON)
    replies = await desk.read(desk.replies, 5)
    assert {int(dict(one.headers)[CORRELATION_ID]) for one in replies} == set(range(5, 10))
    kept = await letters_of(desk.broker, desk.topic, 2)
    assert sorted(letter.headers[CORRELATION_ID] for letter in kept) == [b"8", b"9"]
    await desk.until_committed(10)


async def test_no_header_takes_the_key_of_another_record(desk: Desk) -> None:
    """Not that of a record that comes later, either. What the sender says stays visible."""
    await desk.start_worker().ready()
    claims = [b"%s-0-%d" % (desk.topic.encode(), offset) for offset in (0, 3, 0, 1)]
    await desk.send(1)
    for claim in claims:
        names = ("penstock-replay-of", "penstock-source", "penstock-source-topic-id", "penstock-replays")
        await desk.send(1, own=[(name, claim) for name in names])
    found = {int(dict(one.headers)[CORRELATION_ID]): dict(one.headers) for one in await desk.answered(5)}
    assert [found[number].get("penstock-replay-of") for number in range(5)] == [None, *claims]


async def test_a_client_goes_on_when_its_reply_topic_is_recreated(desk: Desk) -> None:
    await desk.start_worker().ready()
    async with Client(
        bootstrap_servers=desk.broker.bootstrap_servers, model=desk.model, reply_topic=desk.replies, timeout_s=300
    ) as client:
        for _ in range(20):
            await client.embed(ids=[[1, 5]])
        await desk.recreate(desk.replies)
        for _ in range(5):
            await client.embed(ids=[[1, 5]])
