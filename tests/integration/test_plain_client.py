"""A client that knows only WIRE.md, and imports nothing of penstock. The page's own is tests/producer's."""

import asyncio
import struct
from typing import Any

import msgpack
from aiokafka import AIOKafkaProducer, TopicPartition

from tests.integration.conftest import StartWorker, Unique, reader_of


async def test_token_ids_float16_and_errors_as_the_page_describes_them(
    kafka: Any, unique: Unique, start_worker: StartWorker
) -> None:
    model, replies = unique("plain"), unique("penstock.replies.")
    worker = start_worker(kafka, served_name=model)
    await worker.ready()
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    consumer = reader_of(kafka)
    ids, lens = struct.pack("<5I", 7, 8, 9, 100, 200), struct.pack("<2I", 3, 2)
    other_ids = struct.pack("<5I", 7, 8, 10, 100, 200)  # equal ids would be one computation, and one batch
    requests: dict[bytes, dict[str, Any]] = {
        b"floats": {"v": 1, "model": model, "task": "embed", "ids": ids, "lens": lens, "from the future": [1]},
        b"halves": {
            "v": 1,
            "model": model,
            "task": "embed",
            "ids": other_ids,
            "lens": lens,
            "opts": {"dtype": "float16"},
        },
        b"faulty": {
            "v": 1,
            "model": model,
            "task": "embed",
            "ids": struct.pack("<2I", 1, 2**31),
            "lens": b"\1\0\0\0" * 2,
        },
    }
    async with producer, consumer:
        for name, value in requests.items():
            # Without a reply partition, the reply's key decides.
            headers = [("kafka_correlationId", name), ("kafka_replyTopic", replies.encode()), ("traceparent", b"00-ab")]
            await producer.send_and_wait(f"penstock.requests.{model}", msgpack.packb(value), headers=headers)
        consumer.assign([TopicPartition(replies, p) for p in await producer.partitions_for(replies)])
        found: dict[bytes, dict[str, Any]] = {}
        async with asyncio.timeout(300):
            while len(found) < len(requests):
                record = await consumer.getone()
                received = dict(record.headers)
                assert received["traceparent"] == b"00-ab"
                assert len(record.key) == 16
                found[received["kafka_correlationId"]] = msgpack.unpackb(record.value)
    floats, halves, faulty = found[b"floats"], found[b"halves"], found[b"faulty"]
    assert (floats["ok"], floats["n"], floats["shape"], floats["dtype"]) == (True, 2, [2, 4], "float32")
    assert struct.unpack("<8f", floats["data"]) == (3, 7, 9, 24, 2, 100, 200, 300)
    assert struct.unpack("<8e", halves["data"]) == (3, 7, 10, 25, 2, 100, 200, 300)
    assert floats["model"] == model
    assert {"queue", "compute"} <= set(floats["timing"])
    assert {"size", "tokens", "trigger"} <= set(floats["batch"])
    assert (faulty["ok"], faulty["error"]["code"], faulty["error"]["retriable"]) == (False, "bad_token_id", False)
    assert [row[:2] for row in faulty["error"]["rows"]] == [[1, "bad_token_id"]]
