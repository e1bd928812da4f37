"""Result produced, then acknowledged, then committed: in this order, seen from the broker."""

import asyncio
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
from aiokafka import AIOKafkaProducer, TopicPartition

from penstock.ops.kafka import KafkaBroker
from penstock.producer.errors import Overloaded
from penstock.producer.transport.cluster import KafkaCluster
from penstock.producer.transport.outbox import Outbox, OutRecord
from penstock.producer.wire.headers import ReplyAddress
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.commits import Committer
from penstock.worker.kafka.fetching.consumer import Consumer
from penstock.worker.kafka.fetching.group_member import GroupMember
from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress, Source
from penstock.worker.replies.delivery import Delivery
from penstock.worker.requests.ledger import RecordLedger
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.request import Rejection
from tests.integration.conftest import Committed, StartWorker, Unique, reader_of


async def test_nothing_is_committed_before_its_reply_is_acknowledged(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, committed: Committed, tmp_path: Path
) -> None:
    """Replies to one topic are sent, and received here, but the worker gets the acknowledgement only later."""
    model, late, free = unique("order"), f"penstock.replies.{unique('')}.late", unique("penstock.replies.")
    topic, group = f"penstock.requests.{model}", f"penstock.{model}"
    release = tmp_path / "release"
    worker = start_worker(kafka, served_name=model, echo_release=release)
    await worker.ready()
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    consumer = reader_of(kafka)
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
            async with asyncio.timeout(300):
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
            async with asyncio.timeout(300):
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


async def test_a_reply_is_sent_then_acknowledged_then_its_offset_is_committed(
    kafka: KafkaBroker, unique: Unique, committed: Committed
) -> None:
    """The delivery stages of one worker, without its engine; each event is noted where it happens."""
    topic, reply_topic, group = unique("requests"), unique("penstock.replies."), unique("group")
    cluster, events, taken = KafkaCluster(kafka.bootstrap_servers), list[str](), list[PendingRecord]()

    class NotedOutbox(Outbox):
        def put(self, topic: str, partition: int | None, records: Sequence[OutRecord]) -> None:
            events.append("reply sent")
            super().put(topic, partition, records)

    class NotedConsumer(Consumer):
        async def commit(self, offsets: Mapping[Source, PartitionProgress]) -> bool:
            is_committed = await super().commit(offsets)
            events.append(f"offset {offsets[source].offset} committed")
            return is_committed

    async def revoked(_: Any) -> None: ...

    def acknowledged(records: Sequence[PendingRecord]) -> None:
        events.append("reply acknowledged")
        ledger.acknowledge(records)

    source = TopicPartition(topic, 0)
    held, offsets, outbox = Backpressure(100), OffsetTracker(), NotedOutbox(cluster, client_id="test")
    ledger = RecordLedger(held, offsets, {"bulk"})
    consumer = NotedConsumer(
        cluster,
        {topic: False},
        GroupMember(group, worker=0, revision="r", fetch_max_wait_ms=50, drain_s=1),
        received=lambda originals, topic_id: taken.extend(ledger.receive(originals)),
        revoked=revoked,
    )
    committer = Committer(offsets, consumer)
    delivery = Delivery(outbox, held, acknowledged, lambda seconds: None, lambda outcome, records: None, group, 0)
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        await producer.send_and_wait(topic, b"request", partition=0)
        await producer.partitions_for(reply_topic)
    await outbox.start()
    await consumer.start()
    committing = asyncio.create_task(committer.run())
    async with asyncio.timeout(300):
        while not taken:
            await consumer.poll(100)
        [record] = ledger.admit(taken)
        await asyncio.sleep(0.6)  # longer than the time between two commits
        assert events == []
        ledger.answer([record])
        delivery.reject([Rejection(record, ReplyAddress(reply_topic, 0, b"1", None), Overloaded("later"))])
        while await committed(kafka, group) != {source: 1}:
            await consumer.poll(100)
    committing.cancel()
    await asyncio.gather(consumer.stop(5.0), outbox.stop())
    assert events == ["reply sent", "reply acknowledged", "offset 1 committed"]
