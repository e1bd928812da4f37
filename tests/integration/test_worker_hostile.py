"""Records that no honest client sends, through a real broker: the worker lives, and their neighbours are answered."""

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import aiokafka.producer.message_accumulator as accumulator
import msgpack
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from penstock.ops.kafka import KafkaBroker


class RawName(str):
    """A header name that goes out as these bytes."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return super().encode("latin-1")


@pytest.fixture
def python_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiokafka's Python builder of batches asks a name for its bytes; the C one does not."""
    monkeypatch.setattr(accumulator, "DefaultRecordBatchBuilder", _DefaultRecordBatchBuilderPy)


@pytest.mark.usefixtures("python_builder")
async def test_a_header_name_that_is_not_utf8_costs_its_own_record_alone(
    kafka: KafkaBroker,
    unique: Callable[[str], str],
    start_worker: Callable[..., Any],
    committed: Callable[[KafkaBroker, str], Any],
) -> None:
    model, replies = unique("names"), unique("penstock.replies.")
    topic, group = f"penstock.requests.{model}", f"penstock.{model}"
    worker = start_worker(kafka, served_name=model)
    await worker.ready()
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest")
    async with producer, consumer:
        await producer.partitions_for(replies)  # creates it
        batch = producer.create_batch()
        for index in range(5):
            ids, lens = struct.pack("<I", 1 + index), struct.pack("<I", 1)
            value = msgpack.packb({"v": 1, "model": model, "task": "embed", "ids": ids, "lens": lens})
            bad: Any = {1: [(RawName("x\xff"), b"1")], 3: [(RawName("\xfe"), None)]}.get(index, [])
            address: list[Any] = [("kafka_correlationId", b"%d" % index), ("kafka_replyTopic", replies.encode())]
            headers = bad if index == 3 else address + bad
            batch.append(timestamp=None, key=b"key", value=value, headers=headers)
        await (await producer.send_batch(batch, topic, partition=2))
        await producer.send_and_wait(topic, value, partition=2, headers=[*address[1:], ("kafka_correlationId", b"5")])

        async def receive(of: str, count: int) -> list[Any]:
            consumer.assign([TopicPartition(of, p) for p in range(4)])
            await consumer.seek_to_beginning()
            async with asyncio.timeout(20):
                return [await consumer.getone() for _ in range(count)]

        answers = {
            dict(record.headers)["kafka_correlationId"]: msgpack.unpackb(record.value)
            for record in await receive(replies, 5)
        }
        assert sorted(answers) == [b"0", b"1", b"2", b"4", b"5"]
        assert "could not be read" in answers[b"1"]["error"]["message"]
        assert [name for name, answer in answers.items() if "error" in answer] == [b"1"]
        letters = await receive(f"{topic}.dead-letter", 2)
        assert sorted(msgpack.unpackb(letter.value)["ids"] for letter in letters) == [b"\2\0\0\0", b"\4\0\0\0"]
        for letter in letters:
            assert letter.key == b"key"
            assert b"headers could not be read" in dict(letter.headers)["penstock-error-message"]
        async with asyncio.timeout(20):
            while await committed(kafka, group) != {TopicPartition(topic, 2): 6}:  # noqa: ASYNC110 — nobody tells
                await asyncio.sleep(0.1)
    assert worker.process.poll() is None
