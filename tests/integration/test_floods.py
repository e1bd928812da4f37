"""Very many records at fault in one small batch: others are answered meanwhile, and little is written about them."""

import asyncio
import os
from bisect import bisect_left, bisect_right
from typing import Any

import aiokafka.producer.message_accumulator as accumulator
import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy

from penstock.ops.cli.dead_letters.dead_letter import DeadLetter
from penstock.ops.kafka import KafkaBroker
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.headers import CORRELATION_ID, REPLY_TOPIC
from penstock.producer.wire.messages import Request, join_tokens
from penstock.producer.wire.topics import dead_letter_topic, request_topic
from tests.integration.conftest import Committed, StartWorker, Unique, open_admin, reader_of
from tests.integration.test_worker_hostile import RawName

NUM_RECORDS = int(os.environ.get("FLOOD_RECORDS", "40000"))  # 500,000 take 0.7 MB, and this test a minute
MOST_WRITTEN = 8  # times what came in
# Of the flood, that the worker ends while a request of another partition waits: counted in records, which are the same
# on a slow machine. Requests that waited for the flood's end would have seen half of it go by, and the first all of it.
MOST_BEFORE_HALF, MOST_BEFORE_ONE = NUM_RECORDS // 4, NUM_RECORDS // 2


async def send_flood(kafka: KafkaBroker, topic: str) -> int:
    """Send empty records in one batch of partition 0, the first with a header name that is not UTF-8.

    Returns the bytes of the batch.
    """
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, compression_type="gzip", max_batch_size=1 << 28
    )
    async with producer:
        await producer.partitions_for(topic)

        def build() -> Any:
            batch = producer.create_batch()
            for index in range(NUM_RECORDS):
                batch.append(timestamp=1, key=None, value=b"", headers=[] if index else [(RawName("x\xff"), b"1")])
            batch.close()
            return batch

        batch = await asyncio.to_thread(build)
        await (await producer.send_batch(batch, topic, partition=0))
        return len(batch._buffer)


async def test_a_flood_of_empty_records_holds_up_no_other_partition_and_multiplies_nothing(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, committed: Committed, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, replies = unique("flood"), unique("penstock.replies.")
    topic, group = request_topic(model), f"penstock.{model}"
    async with open_admin(kafka) as admin:
        await admin.create_topics([NewTopic(topic, 4, 1, topic_configs={"message.timestamp.type": "LogAppendTime"})])
    worker = start_worker(kafka, served_name=model, partitions=4)
    await worker.ready()
    value = encode_request(Request(model, "embed", join_tokens([[1, 2]])))
    written_at: dict[bytes, int] = {}  # in Unix ms: when the broker had the request
    answered_at: dict[bytes, int] = {}  # when the worker made the answer
    is_over = asyncio.Event()
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    consumer = reader_of(kafka, replies)

    async def ask_neighbours() -> None:
        while not is_over.is_set():
            name = b"%d" % len(written_at)
            headers = [(REPLY_TOPIC, replies.encode()), (CORRELATION_ID, name)]
            partition = 1 + len(written_at) % 3
            written = await producer.send_and_wait(topic, value, partition=partition, headers=headers)
            written_at[name] = written.timestamp
            await asyncio.sleep(0.02)

    async def take_replies() -> None:
        async for record in consumer:
            answered_at[dict(record.headers)[CORRELATION_ID]] = record.timestamp

    async with producer:
        await producer.partitions_for(replies)  # creates it
        async with consumer:
            with monkeypatch.context() as patch:
                patch.setattr(accumulator, "DefaultRecordBatchBuilder", _DefaultRecordBatchBuilderPy)
                asking, taking = asyncio.create_task(ask_neighbours()), asyncio.create_task(take_replies())
                num_bytes = await send_flood(kafka, topic)
            async with asyncio.timeout(300):
                while (await committed(kafka, group)).get(TopicPartition(topic, 0), 0) < NUM_RECORDS:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            is_over.set()
            await asking
            async with asyncio.timeout(300):
                while len(answered_at) < len(written_at):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            taking.cancel()
    letters = reader_of(kafka, dead_letter_topic(topic))
    sources: list[str] = []
    kept_at: list[int] = []  # of each record of the flood, in the order of their letters
    num_written = num_letters = 0
    async with letters, asyncio.timeout(300):
        while len(sources) < NUM_RECORDS:
            letter = await letters.getone()
            num_letters += 1
            num_written += len(letter.value) + sum(len(name) + len(raw) for name, raw in letter.headers)
            sources += [one.source for one in DeadLetter.all_of(letter, bulk=False)]
            kept_at += [letter.timestamp] * (len(sources) - len(kept_at))
    kept_at.sort()
    print(f"{num_bytes:,} bytes in, {num_written:,} out in {num_letters:,} letters, {kept_at[-1] - kept_at[0]:,} ms")
    waits = [(written, answered_at[name]) for name, written in written_at.items()]
    delays_ms = sorted(answered - written for written, answered in waits)
    kept_before = sorted(bisect_right(kept_at, answered) - bisect_left(kept_at, written) for written, answered in waits)
    for what, of_all in (("ms", delays_ms), ("records of the flood", kept_before)):
        print(f"{len(of_all)} waits, p50 {of_all[len(of_all) // 2]:,}, max {of_all[-1]:,} {what}")
    assert set(sources) == {f"{topic}-0-{offset}" for offset in range(NUM_RECORDS)}
    assert len(sources) == NUM_RECORDS
    assert num_written < MOST_WRITTEN * num_bytes
    assert kept_before[len(kept_before) // 2] < MOST_BEFORE_HALF
    assert kept_before[-1] < MOST_BEFORE_ONE
    assert len(worker.events("partitions_assigned")) == 1  # it has kept its session
