"""`--delivery exactly_once`: a reader with read_committed sees each request answered once, whatever happens."""

import asyncio
import contextlib
import os
import signal
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgpack
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client

StartWorker = Callable[..., Any]
Unique = Callable[[str], str]
Committed = Callable[[KafkaBroker, str], Any]
PARTITIONS = 4
POISON = 30_000  # see echo_worker.py


class Pipeline:
    """A model's topics, a stream of numbered requests, and a reader of what is committed of their answers."""

    def __init__(self, broker: KafkaBroker, producer: AIOKafkaProducer, model: str, reply_topic: str) -> None:
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

    async def answers(self, isolation_level: str = "read_committed", *topics: str, until: int = -1) -> Counter[int]:
        """How often each request was answered, once all are and nothing more comes."""
        until = self.num_sent if until < 0 else until
        found: Counter[int] = Counter()
        servers = self.broker.bootstrap_servers
        topics = topics or (self.reply_topic,)
        reader = AIOKafkaConsumer(
            *topics, bootstrap_servers=servers, auto_offset_reset="earliest", isolation_level=isolation_level
        )
        async with reader:
            try:
                async with asyncio.timeout(60):
                    while len(found) < until:
                        some = await reader.getmany(timeout_ms=500)
                        found.update(number(one) for records in some.values() for one in records)
            except TimeoutError:
                missing = sorted(set(range(self.num_sent)) - found.keys())[:10]
                raise AssertionError(f"{len(found)} of {until} are answered; not {missing}") from None
            while some := await reader.getmany(timeout_ms=1500):
                found.update(number(one) for records in some.values() for one in records)
        return found

    async def assert_exactly_once(self) -> None:
        counts = await self.answers()
        assert {n: count for n, count in counts.items() if count > 1} == {}
        assert sorted(counts) == list(range(self.num_sent))


def number(record: Any) -> int:
    return int(dict(record.headers)["kafka_correlationId"])


@contextlib.asynccontextmanager
async def pipeline(broker: KafkaBroker, unique: Unique, name: str) -> AsyncIterator[Pipeline]:
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
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
        worker.process.terminate()
        assert await worker.exit_code() == 0
        assert worker.events("transaction_failed") == []
