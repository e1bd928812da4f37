"""`--delivery exactly_once`: a reader with read_committed sees each request answered once, whatever happens."""

import asyncio
import contextlib
import os
import signal
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgpack
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic

from penstock.ops.kafka import BrokerCluster, KafkaBroker
from penstock.producer import Client
from penstock.producer.aiokafka_internals.transactional_producer import TransactionalProducer
from penstock.producer.transport.cluster import KafkaCluster
from penstock.worker.kafka.fetching.group import evict
from penstock.worker.kafka.progress.owner_marker import OwnerMarker
from tests.integration.conftest import Committed, StartWorker, Unique, only_member, open_admin, reader_of

PARTITIONS = 4
POISON = 30_000  # see echo_worker.py


class Pipeline:
    """A model's topics, a stream of numbered requests, and a reader of what is committed of their answers."""

    def __init__(
        self, broker: KafkaBroker | BrokerCluster, producer: AIOKafkaProducer, model: str, reply_topic: str
    ) -> None:
        self.broker = broker
        self.producer = producer
        self.model = model
        self.topic = f"penstock.requests.{model}"
        self.group = f"penstock.{model}"
        self.reply_topic = reply_topic
        self.num_sent = 0

    async def send(self, count: int, *, topic: str | None = None, reply_topic: str | None = None) -> None:
        """Send the next requests, over all partitions."""
        for n in range(self.num_sent, self.num_sent + count):
            await self.send_one([n % 29_000 + 1, 5], n, topic=topic, reply_topic=reply_topic)
        await self.producer.flush()

    async def send_one(
        self, sequence: list[int], n: int, *, topic: str | None = None, reply_topic: str | None = None
    ) -> None:
        ids, lens = struct.pack(f"<{len(sequence)}I", *sequence), struct.pack("<I", len(sequence))
        value = msgpack.packb({"v": 1, "model": self.model, "task": "embed", "ids": ids, "lens": lens})
        address = (reply_topic or self.reply_topic).encode()
        headers = [("kafka_correlationId", b"%d" % n), ("kafka_replyTopic", address)]
        await self.producer.send(topic or self.topic, value, partition=n % PARTITIONS, headers=headers)
        self.num_sent += 1

    async def streaming(self, count: int, every_s: float) -> None:
        """Send requests one after another."""
        for _ in range(count):
            await self.send(1)
            await asyncio.sleep(every_s)

    async def streaming_until(self, over: asyncio.Event, every_s: float) -> None:
        """Send requests one after another until told to end."""
        while not over.is_set():
            await self.streaming(1, every_s)

    async def until_answered(self) -> None:
        """Wait until as many requests are answered as are sent now. More may be sent meanwhile."""
        async with reader_of(self.broker, self.reply_topic, isolation_level="read_committed") as reader:
            await self._read(reader, Counter(), self.num_sent)

    async def answers(self, isolation_level: str = "read_committed", *topics: str, until: int = -1) -> Counter[int]:
        """How often each request was answered, once all are and nothing more comes."""
        until = self.num_sent if until < 0 else until
        found: Counter[int] = Counter()
        topics = topics or (self.reply_topic,)
        reader = reader_of(self.broker, *topics, isolation_level=isolation_level)
        async with reader:
            await self._read(reader, found, until)
            while some := await reader.getmany(timeout_ms=1500):
                found.update(number(one) for records in some.values() for one in records)
        return found

    async def _read(self, reader: AIOKafkaConsumer, found: Counter[int], until: int) -> None:
        try:
            async with asyncio.timeout(300):
                while len(found) < until:
                    some = await reader.getmany(timeout_ms=500)
                    found.update(number(one) for records in some.values() for one in records)
        except TimeoutError:
            missing = sorted(set(range(self.num_sent)) - found.keys())[:10]
            raise AssertionError(f"{len(found)} of {until} are answered; not {missing}") from None

    async def assert_exactly_once(self) -> None:
        counts = await self.answers()
        assert {n: count for n, count in counts.items() if count > 1} == {}
        assert sorted(counts) == list(range(self.num_sent))


def number(record: Any) -> int:
    return int(dict(record.headers)["kafka_correlationId"])


async def marks(broker: KafkaBroker, group: str) -> set[str]:
    """The owners' marks in the commits."""
    async with open_admin(broker) as admin:
        commits = (await admin.list_consumer_group_offsets(group)).values()
        return {"".join(found.metadata.partition(";")[1:]) for found in commits}


@contextlib.asynccontextmanager
async def pipeline(broker: KafkaBroker | BrokerCluster, unique: Unique, name: str) -> AsyncIterator[Pipeline]:
    options = {"enable_idempotence": True, "request_timeout_ms": 300_000}  # longer than a slow machine elects a leader
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, **options) as producer:
        made = Pipeline(broker, producer, unique(name), unique("penstock.replies."))
        await producer.partitions_for(made.reply_topic)  # creates it
        yield made


@pytest.fixture
def start(start_worker: StartWorker) -> StartWorker:
    def start_one(line: Pipeline, **settings: Any) -> Any:
        settings = {"partitions": PARTITIONS, "delivery": "exactly_once", "drain_s": 5} | settings
        return start_worker(line.broker, served_name=line.model, **settings)

    return start_one


async def test_replies_and_offsets_are_committed_together(
    kafka: KafkaBroker, unique: Unique, start: StartWorker, committed: Committed
) -> None:
    async with pipeline(kafka, unique, "together") as line:
        worker = start(line)
        await worker.ready()
        await line.send(200)
        await line.assert_exactly_once()
        assert sum((await committed(kafka, line.group)).values()) == 200
        assert await marks(kafka, line.group) == {OwnerMarker().text()}
        await worker.stop()
        assert await marks(kafka, line.group) == {""}
        assert worker.events("transaction_failed") == []


async def test_a_member_killed_mid_load_loses_nothing_and_answers_nothing_twice(
    kafka: KafkaBroker, unique: Unique, start: StartWorker
) -> None:
    async with pipeline(kafka, unique, "killed") as line:
        first = await start(line).ready()
        member = await only_member(kafka, line.group)
        second = await start(line).ready()
        load = asyncio.create_task(line.streaming(1000, 0.004))
        await asyncio.gather(first.event("batch_done"), second.event("batch_done"))
        await asyncio.sleep(1)
        first.process.kill()
        await evict(KafkaCluster(kafka.bootstrap_servers), line.group, member)
        await load
        await line.assert_exactly_once()
        assert second.events("partition_fenced") == []


async def test_a_member_that_slept_through_its_eviction_publishes_nothing_that_others_have_answered(
    kafka: KafkaBroker, unique: Unique, start: StartWorker
) -> None:
    """Stopped with answers in its hands, and woken after another member has answered the same requests.

    Either the group tells it that it is evicted, or the coordinator of its transactions that it is fenced.
    """
    async with pipeline(kafka, unique, "zombie") as line:
        zombie = start(line, transaction_window_ms=3000)
        await zombie.ready()
        await line.send(100)
        await zombie.event("batch_done")
        os.kill(zombie.process.pid, signal.SIGSTOP)
        other = start(line)
        await other.event("batch_done")
        assert sorted(await line.answers()) == list(range(100))
        os.kill(zombie.process.pid, signal.SIGCONT)
        await zombie.until(lambda: next(iter(zombie.events("partitions_assigned")[1:]), None), "a new assignment", 60)
        await line.send(100)
        await line.assert_exactly_once()


async def test_answers_of_revoked_partitions_are_committed_or_never_seen(
    kafka: KafkaBroker, unique: Unique, start: StartWorker
) -> None:
    """Members join and leave under load."""
    async with pipeline(kafka, unique, "revoked") as line:
        first = start(line)
        await first.ready()
        load = asyncio.create_task(line.streaming(1500, 0.005))
        await first.event("batch_done")
        second = start(line)
        await second.event("partitions_assigned")
        await load
        load = asyncio.create_task(line.streaming(500, 0.005))  # however long the second took to start
        await second.event("batch_done")
        await first.stop()
        await load
        await line.assert_exactly_once()
        await second.stop()


async def test_error_replies_and_dead_letters_are_in_the_transaction(
    kafka: KafkaBroker, unique: Unique, start: StartWorker, tmp_path: Path
) -> None:
    """A window stays open behind a request that is not answered: nothing of it is seen, and then all of it."""
    async with pipeline(kafka, unique, "errors") as line:
        letters, gate = f"{line.topic}.dead-letter", tmp_path / "gate"
        worker = start(line, echo_gate=gate, lanes=1)
        await worker.ready()
        await line.send_one([1, 2], 0)
        await line.send_one([], PARTITIONS)  # of the same partition: refused at once, before the first is answered
        await line.producer.flush()
        await worker.event("request_refused")
        assert await line.answers("read_uncommitted", until=0) == {}
        gate.touch()
        assert await line.answers("read_uncommitted", line.reply_topic, letters, until=1) != {}
        counts = await line.answers("read_committed", line.reply_topic, letters, until=2)
        assert counts == {0: 1, PARTITIONS: 2}  # its error reply and its dead letter


async def test_a_topic_that_takes_no_replies_does_not_stop_its_partition(
    kafka: KafkaBroker, unique: Unique, start: StartWorker
) -> None:
    """Its requests go to dead letters, in the transaction."""
    async with pipeline(kafka, unique, "nowhere") as line:
        letters = f"{line.topic}.dead-letter"
        await start(line, max_reply_bytes=1024).ready()
        bad = unique("penstock.replies.") + "\u00e9"
        await line.send(4)
        await line.send(4, reply_topic=bad)
        await line.send(4)
        assert await line.answers(until=8) == dict.fromkeys([0, 1, 2, 3, 8, 9, 10, 11], 1)
        assert await line.answers("read_committed", letters, until=4) == dict.fromkeys([4, 5, 6, 7], 1)


async def test_a_broker_that_restarts_costs_no_answer_and_doubles_none(unique: Unique, start: StartWorker) -> None:
    """Each of three dies under load: every coordinator of transactions and every leader of answers.

    A cluster of one is no part of the promise: Kafka may call a commit complete whose markers it has not written.
    """
    with BrokerCluster(num_partitions=PARTITIONS) as cluster:
        async with pipeline(cluster, unique, "outage") as line:
            worker, over = start(line), asyncio.Event()
            await worker.ready()
            load = asyncio.create_task(line.streaming_until(over, 0.01))
            await worker.event("batch_done")
            for node in cluster.nodes:
                await asyncio.to_thread(node.kill)
                await line.until_answered()  # by the other two
                await asyncio.to_thread(node.start)
            over.set()
            await load
            try:
                await line.assert_exactly_once()
            except AssertionError as error:
                raise AssertionError(f"{error}\n{worker.tail()}") from error


async def test_an_upstream_transaction_that_is_aborted_is_not_answered(
    kafka: KafkaBroker, unique: Unique, start: StartWorker
) -> None:
    """The worker is one stage of a pipeline: it reads its requests with read_committed, compressed or not."""
    async with pipeline(kafka, unique, "upstream") as line:
        await start(line).ready()
        for codec in (None, "gzip"):
            upstream = AIOKafkaProducer(
                bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("upstream"), compression_type=codec
            )
            async with upstream:
                line.producer, num_sent = upstream, line.num_sent
                await upstream.begin_transaction()
                await line.send(20)
                await upstream.abort_transaction()
                line.num_sent = num_sent
                await upstream.begin_transaction()
                await line.send(10)
                await upstream.commit_transaction()
        await line.assert_exactly_once()


async def test_a_bulk_job_reads_what_is_committed(kafka: KafkaBroker, unique: Unique, start: StartWorker) -> None:
    async with pipeline(kafka, unique, "bulk") as line:
        await start(line, transaction_window_ms=20).ready()
        client = Client(
            bootstrap_servers=kafka.bootstrap_servers, model=line.model, bulk=True, isolation_level="read_committed"
        )
        async with client:
            vectors = await asyncio.gather(*[client.embed(ids=[[n + 1, 5]]) for n in range(300)])
        assert [vector[0, 1] for vector in vectors] == list(range(1, 301))


async def test_once_ends_behind_an_upstream_transaction(kafka: KafkaBroker, unique: Unique, start: StartWorker) -> None:
    """The topic ends with the transaction's marker, which is no record."""
    async with pipeline(kafka, unique, "marker") as line:
        await line.producer.partitions_for(line.topic)
        upstream = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=unique("upstream"))
        async with upstream:
            line.producer = upstream
            await upstream.begin_transaction()
            await line.send(20)
            await upstream.commit_transaction()
            assert await start(line, once=True).exit_code() == 0
            await line.assert_exactly_once()


async def test_a_timeout_beyond_the_brokers_bound_is_named(unique: Unique, start: StartWorker) -> None:
    with KafkaBroker(num_partitions=PARTITIONS, config={"transaction.max.timeout.ms": "5000"}) as broker:
        async with pipeline(broker, unique, "bound") as line:
            worker = start(line)
            assert await worker.exit_code() != 0
            assert "transaction.max.timeout.ms" in worker.tail()


async def test_a_reply_that_its_topic_does_not_take_is_refused_and_the_others_are_sent(
    kafka: KafkaBroker, unique: Unique, start: StartWorker
) -> None:
    async with pipeline(kafka, unique, "large") as line:
        line.reply_topic = unique("penstock.replies.")
        async with open_admin(kafka) as admin:
            await admin.create_topics([NewTopic(line.reply_topic, 1, 1, topic_configs={"max.message.bytes": "3000"})])
        worker = start(line)
        await worker.ready()
        await line.send(50)  # too large together, and not one by one
        ids, lens = struct.pack("<400I", *range(1, 401)), struct.pack("<400I", *[1] * 400)
        value = msgpack.packb({"v": 1, "model": line.model, "task": "embed", "ids": ids, "lens": lens})
        headers = [("kafka_correlationId", b"50"), ("kafka_replyTopic", line.reply_topic.encode())]
        await line.producer.send_and_wait(line.topic, value, partition=0, headers=headers)
        line.num_sent += 1
        await line.send(50)
        await line.assert_exactly_once()
        letters = await line.answers("read_committed", f"{line.topic}.dead-letter", until=1)
        assert letters == {50: 1}


async def test_a_transaction_without_a_successor_holds_up_readers_for_no_longer_than_its_timeout(
    kafka: KafkaBroker, unique: Unique
) -> None:
    """The replies of others to the same partition wait behind it. The broker looks once a second here."""
    timeout_s, look_s, slow_s = 3.0, 1.0, 40.0  # Kafka's own default is 60 s
    cluster, topic = KafkaCluster(kafka.bootstrap_servers), unique("penstock.replies.")
    source = TopicPartition(topic, 0)
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as other:
        await other.send_and_wait(topic, b"before", partition=0)
        hung = TransactionalProducer(cluster.arguments, other, unique("group"), timeout_s)
        await hung.start()
        begun_s = time.monotonic()
        await hung.begin_transaction()
        builder = hung.create_batch()
        builder.append(timestamp=None, key=b"k", value=b"never committed")
        await (await hung.send_batch(builder, topic, partition=0))
        await hung.stop()  # without an abort, as if it were killed
        await other.send_and_wait(topic, b"behind", partition=0)
        reader = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, isolation_level="read_committed")
        async with reader:
            reader.assign([source])
            reader.seek(source, 0)
            assert (await reader.getone()).value == b"before"
            async with asyncio.timeout(timeout_s + look_s + slow_s):
                assert (await reader.getone()).value == b"behind"
            assert time.monotonic() - begun_s > timeout_s / 2
