"""Malicious records through a real broker: the worker survives them, and answers their neighbours."""

import asyncio
import struct
from typing import Any

import aiokafka.producer.message_accumulator as accumulator
import msgpack
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from penstock.ops.kafka import KafkaBroker
from tests.integration.conftest import Committed, StartWorker, Unique, letters_of, open_admin, reader_of


class RawName(str):
    """A header name that is encoded as these bytes."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        return super().encode("latin-1")


@pytest.fixture
def python_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    """aiokafka's Python builder of batches asks a name for its bytes; the C one does not."""
    monkeypatch.setattr(accumulator, "DefaultRecordBatchBuilder", _DefaultRecordBatchBuilderPy)


@pytest.mark.usefixtures("python_builder")
async def test_a_header_name_that_is_not_utf8_fails_its_own_record_alone(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, committed: Committed
) -> None:
    model, replies = unique("names"), unique("penstock.replies.")
    topic, group = f"penstock.requests.{model}", f"penstock.{model}"
    worker = start_worker(kafka, served_name=model)
    await worker.ready()
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    consumer = reader_of(kafka)
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

        consumer.assign([TopicPartition(replies, p) for p in range(4)])
        async with asyncio.timeout(300):
            records = [await consumer.getone() for _ in range(5)]
        answers = {dict(one.headers)["kafka_correlationId"]: msgpack.unpackb(one.value) for one in records}
        assert sorted(answers) == [b"0", b"1", b"2", b"4", b"5"]
        assert "could not be read" in answers[b"1"]["error"]["message"]
        assert [name for name, answer in answers.items() if "error" in answer] == [b"1"]
        letters = await letters_of(kafka, topic, 2)
        found = [msgpack.unpackb(letter.record.value)["ids"] for letter in letters]
        assert sorted(found) == [b"\2\0\0\0", b"\4\0\0\0"]
        for letter in letters:
            assert letter.record.key == b"key"
            assert b"headers could not be read" in letter.headers["penstock-error-message"]
        async with asyncio.timeout(300):
            while await committed(kafka, group) != {TopicPartition(topic, 2): 6}:  # noqa: ASYNC110 — there is no event to wait for
                await asyncio.sleep(0.1)
    assert worker.process.poll() is None


async def test_letters_and_replies_that_no_broker_takes_end_with_an_error_and_block_nothing(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, committed: Committed
) -> None:
    """Compressed, a record is small enough for the broker that would close the connection on its dead letter."""
    model, replies = unique("large"), unique("penstock.replies.")
    topic, group = f"penstock.requests.{model}", f"penstock.{model}"
    async with open_admin(kafka) as admin:
        await admin.create_topics([NewTopic(replies, 4, 1, topic_configs={"max.message.bytes": "1024"})])
    worker = start_worker(kafka, served_name=model)
    await worker.ready()

    def request(num_sequences: int) -> bytes:
        ids = struct.pack("<I", 7) * num_sequences
        lens = struct.pack("<I", 1) * num_sequences
        return bytes(msgpack.packb({"v": 1, "model": model, "task": "embed", "ids": ids, "lens": lens}))

    values = {b"bomb": bytes(12 * 1024 * 1024), b"header": None, b"reply": request(100), b"fine": request(1)}
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, compression_type="gzip", max_request_size=1 << 30
    )
    consumer = reader_of(kafka)
    async with producer, consumer:
        for name, value in values.items():
            headers = [("kafka_correlationId", name), ("kafka_replyTopic", replies.encode())]
            headers += [("kafka_replyPartition", struct.pack(">i", 0))]
            headers += [("x", bytes(12 * 1024 * 1024))] if name == b"header" else []
            await producer.send_and_wait(topic, value, partition=1, key=b"key", headers=headers)

        consumer.assign([TopicPartition(replies, p) for p in range(4)])
        async with asyncio.timeout(300):
            records = [await consumer.getone() for _ in range(4)]
        answers = {dict(one.headers)["kafka_correlationId"]: msgpack.unpackb(one.value) for one in records}
        assert {name for name, answer in answers.items() if "error" not in answer} == {b"fine"}
        assert {answer["error"]["code"] for answer in answers.values() if "error" in answer} == {"invalid_request"}
        assert "send fewer sequences" in answers[b"reply"]["error"]["message"]
        letters = {letter.source: letter for letter in await letters_of(kafka, topic, 3)}
        bomb, header, reply = (letters[f"{topic}-1-{offset}"] for offset in range(3))
        assert (bomb.record.key, bomb.record.value) == (b"key", b"")
        assert bomb.headers["kafka_correlationId"] == b"bomb"
        assert bomb.headers["penstock-value-left-out-bytes"] == b"%d" % len(values[b"bomb"] or b"")
        assert header.record.value is None
        assert int(header.headers["penstock-headers-left-out-bytes"]) > 12 * 1024 * 1024
        assert (reply.record.key, reply.record.value) == (b"key", values[b"reply"])
        async with asyncio.timeout(300):
            while await committed(kafka, group) != {TopicPartition(topic, 1): 4}:  # noqa: ASYNC110 — there is no event to wait for
                await asyncio.sleep(0.1)
    assert worker.process.poll() is None
