"""A record that ends the process of its worker, on a real broker: the group goes on, and the record is set aside."""

import asyncio
import struct
from typing import Any

import msgpack
from aiokafka import AIOKafkaProducer, TopicPartition

from penstock.ops.kafka import KafkaBroker
from tests.integration.conftest import Committed, StartWorker, Unique, evict_members, letters_of, reader_of
from tests.integration.echo_worker import KILLER

NUM_GOOD = 60
MAX_DEATHS = 3
PARTITION = 2  # of the record that kills; the others have good requests alone


async def test_a_record_that_ends_three_workers_is_quarantined_and_all_others_are_answered(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, committed: Committed
) -> None:
    model, replies = unique("killer"), unique("penstock.replies.")
    topic, group = f"penstock.requests.{model}", f"penstock.{model}"
    workers = [start_worker(kafka, served_name=model)]
    await workers[0].ready()
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    consumer = reader_of(kafka)
    answers: dict[bytes, Any] = {}
    async with producer, consumer:
        await producer.partitions_for(replies)
        for number in range(NUM_GOOD + 1):
            is_killer = number == NUM_GOOD // 2
            ids, lens = struct.pack("<I", KILLER if is_killer else number + 1), struct.pack("<I", 1)
            value = msgpack.packb({"v": 1, "model": model, "task": "embed", "ids": ids, "lens": lens})
            headers = [("kafka_correlationId", b"%d" % number), ("kafka_replyTopic", replies.encode())]
            partition = PARTITION if is_killer else number % 4
            await producer.send(topic, value, partition=partition, headers=headers)
        await producer.flush()
        consumer.assign([TopicPartition(replies, p) for p in range(4)])
        async with asyncio.timeout(300):
            while len(answers) <= NUM_GOOD:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        answers[dict(record.headers)["kafka_correlationId"]] = msgpack.unpackb(record.value)
                if workers[-1].process.poll() is not None:  # as a supervisor, here or on another machine
                    await evict_members(kafka, group)
                    workers.append(start_worker(kafka, served_name=model))
        assert [number for number, answer in answers.items() if not answer["ok"]] == [b"%d" % (NUM_GOOD // 2)]
        assert "ended 3 workers" in answers[b"%d" % (NUM_GOOD // 2)]["error"]["message"]
        assert len(workers) == MAX_DEATHS + 1
        [letter] = await letters_of(kafka, topic, 1)
        reasons = letter.headers
        assert msgpack.unpackb(letter.record.value)["ids"] == struct.pack("<I", KILLER)
        assert (reasons["penstock-error-code"], reasons["penstock-error-attempts"]) == (b"backend", b"3")
        assert reasons["__dlq.errors.delivery.count"] == b"3"
        await workers[-1].stop()
        ends = await consumer.end_offsets([TopicPartition(topic, p) for p in range(4)])
        assert await committed(kafka, group) == ends
    [quarantined] = workers[-1].events("record_quarantined")
    assert (quarantined["topic"], quarantined["partition"]) == (topic, PARTITION)
