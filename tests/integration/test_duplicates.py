"""Requests answered twice after a crash: none that the dead member had committed as finished beyond its prefix."""

import asyncio
import os
import signal
import struct
from collections import Counter
from pathlib import Path

import msgpack
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.structs import OffsetAndMetadata

from penstock.ops.kafka import KafkaBroker
from penstock.worker.kafka.progress import commit_metadata
from tests.integration.conftest import Committed, StartWorker, Unique, evict_members, open_admin, reader_of

BEHIND = 300  # records behind the slow head of line, in its partition


async def send(producer: AIOKafkaProducer, topic: str, model: str, names: list[int], reply_topic: str) -> None:
    """One request each, all to partition 0."""
    for n in names:
        ids, lens = struct.pack("<2I", n + 1, 5), struct.pack("<I", 2)
        value = msgpack.packb({"v": 1, "model": model, "task": "embed", "ids": ids, "lens": lens})
        headers = [("kafka_correlationId", b"%d" % n), ("kafka_replyTopic", reply_topic.encode())]
        await producer.send(topic, value, partition=0, headers=headers)
    await producer.flush()


async def replies(kafka: KafkaBroker, topics: list[str], until: int) -> Counter[int]:
    """How often each request was answered, once there are `until` answers and nothing more comes."""
    found: Counter[int] = Counter()
    async with reader_of(kafka, *topics) as c:
        async with asyncio.timeout(300):
            while found.total() < until:
                found[int(dict((await c.getone()).headers)["kafka_correlationId"])] += 1
        while more := await c.getmany(timeout_ms=1000):
            found.update(int(dict(one.headers)["kafka_correlationId"]) for some in more.values() for one in some)
    return found


def finished_beyond(commit: OffsetAndMetadata) -> frozenset[int]:
    """Offsets in the metadata of a commit; the owner's mark follows them."""
    return commit_metadata.decode(commit.offset, commit.metadata.partition(";")[0])[1]


async def group_commit(kafka: KafkaBroker, group: str, source: TopicPartition) -> OffsetAndMetadata | None:
    async with open_admin(kafka) as admin:
        return (await admin.list_consumer_group_offsets(group)).get(source)


async def test_a_member_killed_behind_a_slow_head_of_line_leaves_one_duplicate(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, committed: Committed, tmp_path: Path
) -> None:
    """The head's reply is never acknowledged, so nothing is committed as the prefix. The others are finished."""
    model, free = unique("slow-head"), unique("penstock.replies.")
    late = f"{free}.late"
    topic, group = f"penstock.requests.{model}", f"penstock.{model}"
    source = TopicPartition(topic, 0)
    first = start_worker(kafka, served_name=model, echo_release=tmp_path / "never")
    await first.ready()
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for reply_topic in (late, free):
            await producer.partitions_for(reply_topic)  # creates it
        await send(producer, topic, model, [0], late)
        await send(producer, topic, model, list(range(1, BEHIND + 1)), free)
        async with asyncio.timeout(300):
            while True:
                commit = await group_commit(kafka, group, source)
                if commit and len(finished_beyond(commit)) == BEHIND:
                    break
                await asyncio.sleep(0.1)
        assert commit.offset == 0
        first.process.kill()
        await first.exit_code()
        await evict_members(kafka, group)
        second = start_worker(kafka, served_name=model)
        restored = await second.event("answered_by_last_owner")
        assert (restored["offset"], restored["records"]) == (0, BEHIND)
        await send(producer, topic, model, [BEHIND + 1], free)
        counts = await replies(kafka, [late, free], BEHIND + 3)
        await second.stop()
    assert {n: count for n, count in counts.items() if count > 1} == {0: 2}  # all of them, without the metadata
    assert second.events("stopped")[0]["answered"] == 2
    assert (await committed(kafka, group))[source] == BEHIND + 2


async def test_a_member_that_slept_through_its_eviction_finishes_nothing_that_others_have_answered(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, tmp_path: Path
) -> None:
    """Its batches end after it has heard of the eviction: what it finished then was answered twice."""
    model, reply_topic, gate = unique("zombie"), unique("penstock.replies."), tmp_path / "gate"
    topic, group = f"penstock.requests.{model}", f"penstock.{model}"
    zombie = await start_worker(kafka, served_name=model, echo_gate=gate, max_batch_tokens=4).ready()
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        await producer.partitions_for(reply_topic)
        await send(producer, topic, model, list(range(60)), reply_topic)
        async with asyncio.timeout(300):
            while await group_commit(kafka, group, TopicPartition(topic, 0)) is None:  # noqa: ASYNC110 — it asks
                await asyncio.sleep(0.1)  # the mark of its owner, which is committed before a record runs
        os.kill(zombie.process.pid, signal.SIGSTOP)
        other = start_worker(kafka, served_name=model)
        assert set((await replies(kafka, [reply_topic], 60)).values()) == {1}
        os.kill(zombie.process.pid, signal.SIGCONT)
        await zombie.event("drained")
        gate.touch()
        await zombie.until(lambda: next(iter(zombie.events("partitions_assigned")[1:]), None), "a new assignment", 60)
        await send(producer, topic, model, [60], reply_topic)
        counts = await replies(kafka, [reply_topic], 61)
    assert counts == dict.fromkeys(range(61), 1)
    assert other.events("partitions_revoked")


async def test_commit_metadata_of_another_program_is_ignored_with_one_warning(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker
) -> None:
    model, reply_topic = unique("foreign"), unique("penstock.replies.")
    topic, group = f"penstock.requests.{model}", f"penstock.{model}"
    source = TopicPartition(topic, 0)
    async with (
        AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer,
        AIOKafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=group, enable_auto_commit=False) as other,
    ):
        await producer.partitions_for(topic)
        await send(producer, topic, model, [0, 1, 2], reply_topic)
        other.assign([source])
        await other.commit({source: (1, "written by another program")})
        worker = start_worker(kafka, served_name=model)
        assert set(await replies(kafka, [reply_topic], 2)) == {1, 2}
    assert [event["offset"] for event in worker.events("commit_metadata_ignored")] == [1]


async def test_a_broker_that_takes_no_metadata_gets_the_offset_alone(
    unique: Unique, start_worker: StartWorker, tmp_path: Path
) -> None:
    model = unique("short")
    topic, group = f"penstock.requests.{model}", f"penstock.{model}"
    with KafkaBroker(config={"offset.metadata.max.bytes": "8"}) as broker:
        worker = start_worker(broker, served_name=model, echo_release=tmp_path / "never")
        await worker.ready()
        async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
            for reply_topic in ("penstock.replies.late", "penstock.replies"):
                await producer.partitions_for(reply_topic)
            await send(producer, topic, model, [0], "penstock.replies")
            await send(producer, topic, model, [1], "penstock.replies.late")
            await send(producer, topic, model, [2], "penstock.replies")
            await worker.event("commit_metadata_refused")
            async with asyncio.timeout(300):
                commit = await group_commit(broker, group, TopicPartition(topic, 0))
                while commit is None or commit.offset == 0:  # the first commit marks the partition
                    await asyncio.sleep(0.1)
                    commit = await group_commit(broker, group, TopicPartition(topic, 0))
    assert (commit.offset, commit.metadata) == (1, "")
    assert len(worker.events("commit_metadata_refused")) == 1
