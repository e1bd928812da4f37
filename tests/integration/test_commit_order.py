"""Result produced, then acknowledged, then committed: in this order, seen from the broker."""

import asyncio
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from penstock.ops.kafka import KafkaBroker


async def test_nothing_is_committed_before_its_reply_is_acknowledged(
    kafka: KafkaBroker,
    unique: Callable[[str], str],
    start_worker: Callable[..., Any],
    committed: Callable[[KafkaBroker, str], Any],
    tmp_path: Path,
) -> None:
    """Replies to one topic are sent, and received here, but the worker gets the acknowledgement only later."""
    model, late, free = unique("order"), f"penstock.replies.{unique('')}.late", unique("penstock.replies.")
    topic, group = f"penstock.requests.{model}", f"penstock.{model}"
    release = tmp_path / "release"
    worker = start_worker(kafka, served_name=model, echo_release=release)
    await worker.ready()
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, auto_offset_reset="earliest")
    async with producer, consumer:

        async def send(name: bytes, partition: int, reply_topic: str) -> None:
            ids, lens = struct.pack("<I", 1 + len(name)), struct.pack("<I", 1)
            value = msgpack.packb({"v": 1, "model": model, "task": "embed", "ids": ids, "lens": lens})
            headers = [("kafka_correlationId", name), ("kafka_replyTopic", reply_topic.encode())]
            await producer.send_and_wait(topic, value, partition=partition, headers=headers)

        for reply_topic in (late, free):
            await producer.partitions_for(reply_topic)  # creates it

        async def receive(reply_topic: str, count: int) -> list[bytes]:
            consumer.assign([TopicPartition(reply_topic, p) for p in range(4)])
            await consumer.seek_to_beginning()
            async with asyncio.timeout(20):
                return [dict((await consumer.getone()).headers)["kafka_correlationId"] for _ in range(count)]

        # Partition 0: answered, late, answered. Partition 1: answered.
        await send(b"a", 0, free)
        await send(b"bb", 0, late)
        await send(b"ccc", 0, free)
        await send(b"dddd", 1, free)
        assert sorted(await receive(free, 3)) == [b"a", b"ccc", b"dddd"]
        await worker.event("batch_done")

        async def offsets(want: dict[int, int]) -> None:
            """Wait until these are committed."""
            async with asyncio.timeout(20):
                while await found() != want:  # noqa: ASYNC110 — the broker announces no commit
                    await asyncio.sleep(0.1)

        async def found() -> dict[int, int]:
            return {source.partition: offset for source, offset in (await committed(kafka, group)).items() if offset}

        await offsets({0: 1, 1: 1})
        # More of partition 0 is acknowledged, and partition 1 is committed after that; partition 0 must not move.
        await send(b"eeeee", 0, free)
        assert b"eeeee" in await receive(free, 4)
        await send(b"ffffff", 1, free)
        await offsets({0: 1, 1: 2})
        assert await receive(late, 1) == [b"bb"]  # it is out
        release.touch()
        await offsets({0: 4, 1: 2})
