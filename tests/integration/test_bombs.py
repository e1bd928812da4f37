"""Batches that unpack to far more than they are: worker and client skip them, and others are answered meanwhile."""

import asyncio
from pathlib import Path

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewTopic
from structlog.testing import capture_logs

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client
from penstock.producer.aiokafka_internals.bounded_fetch import MAX_BATCH_BYTES
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.headers import CORRELATION_ID, REPLY_TOPIC
from penstock.producer.wire.messages import Request, join_tokens
from penstock.producer.wire.topics import request_topic
from tests.integration.conftest import Committed, StartWorker, Unique, letters_of, open_admin, reader_of

MIB = 1024 * 1024
BOMBS = {"gzip": 256 * MIB, "snappy": 18 * MIB, "lz4": 128 * MIB, "zstd": 256 * MIB}  # each below 1 MiB in its batch
COPIES = 2
GROWTH = 160 * MIB  # of the worker's memory at its peak; one bomb of gzip alone cost 520 MiB
DELAY_MS = 2000  # of requests on other partitions, from the broker to the answer, on a loaded machine of two cores
MOST_DELAYED = 20  # requests: a machine that stands still delays those that are under way, a bomb 50 a second


async def send_bombs(kafka: KafkaBroker, topic: str, partition: int, copies: int) -> None:
    """Send every bomb, from a thread, as the compression would stop this event loop."""
    await asyncio.to_thread(asyncio.run, _send_bombs(kafka, topic, partition, copies))


async def _send_bombs(kafka: KafkaBroker, topic: str, partition: int, copies: int) -> None:
    for codec, size in BOMBS.items():
        producer = AIOKafkaProducer(
            bootstrap_servers=kafka.bootstrap_servers, compression_type=codec, max_request_size=2 * size
        )
        async with producer:
            for _ in range(copies):
                await producer.send_and_wait(topic, bytes(size), partition=partition)


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


async def test_bombs_become_dead_letters_and_other_partitions_are_answered_meanwhile(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, committed: Committed
) -> None:
    model, replies = unique("bombs"), unique("penstock.replies.")
    topic = request_topic(model)
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

    async def ask(partition: int) -> None:
        name = b"%d" % len(written_at)
        headers = [(REPLY_TOPIC, replies.encode()), (CORRELATION_ID, name)]
        written = await producer.send_and_wait(topic, value, partition=partition, headers=headers)
        written_at[name] = written.timestamp

    async def ask_neighbours() -> None:
        while not is_over.is_set():
            await ask(1 + len(written_at) % 3)
            await asyncio.sleep(0.02)

    async with producer:
        await producer.partitions_for(replies)  # creates it
        async with consumer:
            await ask(1)
            await consumer.getone()
            before = peak_bytes(worker.process.pid)
            written_at.clear()
            asking = asyncio.create_task(ask_neighbours())

            async def take_replies() -> None:
                while not is_over.is_set() or len(answered_at) < len(written_at):
                    record = await consumer.getone()
                    answered_at[dict(record.headers)[CORRELATION_ID]] = record.timestamp

            taking = asyncio.create_task(take_replies())
            await send_bombs(kafka, topic, 0, COPIES)
            num_bombs = COPIES * len(BOMBS)
            async with asyncio.timeout(300):
                while (await committed(kafka, f"penstock.{model}")).get(TopicPartition(topic, 0), 0) < num_bombs:  # noqa: ASYNC110
                    await asyncio.sleep(0.2)
            await ask(0)
            is_over.set()
            await asking
            async with asyncio.timeout(300):
                await taking
    grown = peak_bytes(worker.process.pid) - before
    delays_ms = [answered_at[name] - written for name, written in written_at.items()]
    num_delayed = sum(delay_ms >= DELAY_MS for delay_ms in delays_ms)
    print(f"grown by {grown / MIB:.0f} MiB; {len(delays_ms)} answers, the slowest after {max(delays_ms)} ms")
    assert grown < GROWTH
    assert num_delayed < MOST_DELAYED
    assert [event["reason"] for event in worker.events("batch_unreadable")] == [
        f"it unpacks to more than {MAX_BATCH_BYTES:,} bytes"
    ] * num_bombs
    kept = await letters_of(kafka, topic, num_bombs)
    assert sorted(letter.source for letter in kept) == [f"{topic}-0-{n}" for n in range(num_bombs)]
    assert all(b"unpacks to more than" in letter.headers["penstock-error-message"] for letter in kept)


async def test_a_client_skips_bombs_on_its_reply_partition(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker
) -> None:
    model, replies = unique("bombs"), unique("penstock.replies.")
    worker = start_worker(kafka, served_name=model, partitions=4)
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        await producer.partitions_for(replies)
    settings = {"bootstrap_servers": kafka.bootstrap_servers, "model": model, "reply_topic": replies}
    async with Client(**settings, timeout_s=300) as client:  # type: ignore[arg-type]
        await worker.ready()
        with capture_logs() as logs:
            await send_bombs(kafka, replies, client._exchange._inbox.partition, 1)
            answer = await client.request(Request(model, "embed", join_tokens([[7, 8]])))
        assert answer.vectors is not None
        assert answer.vectors[0].tolist() == [2, 7, 8, 15]
    assert [log["event"] for log in logs].count("batch_unreadable") == len(BOMBS)
