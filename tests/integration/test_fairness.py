"""One reply partition that acknowledges nothing does not stop the requests of others. A real broker."""

import asyncio
import statistics
import time
from pathlib import Path

from aiokafka import AIOKafkaProducer, TopicPartition

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.headers import CORRELATION_ID, REPLY_TOPIC
from penstock.producer.wire.messages import Request, join_tokens
from penstock.producer.wire.topics import request_topic
from tests.integration.conftest import Committed, StartWorker, Unique, letters_of

IN_FLIGHT, STALL_S = 64, 2.0


async def test_a_dead_reply_partition_holds_up_others_for_a_bounded_time(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, committed: Committed, tmp_path: Path
) -> None:
    model = unique("fair")
    topic, dead, release = request_topic(model), unique("penstock.replies.") + ".late", tmp_path / "release"
    worker = start_worker(
        kafka, served_name=model, partitions=2, max_in_flight=IN_FLIGHT, echo_release=release, echo_stall_s=STALL_S
    )
    await worker.ready()
    value = encode_request(Request(model, "embed", join_tokens([[1, 2]])))
    headers = [(REPLY_TOPIC, dead.encode()), (CORRELATION_ID, b"1")]
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    client = Client(bootstrap_servers=kafka.bootstrap_servers, model=model, timeout_s=300)
    num_sent = 0

    async def send(count: int) -> int:
        for number in range(count):
            await producer.send_and_wait(topic, value, headers=headers, partition=number % 2)
        return num_sent + count

    async def ask() -> float:
        started = time.monotonic()
        await client.request(Request(model, "embed", join_tokens([[3, 4]])))
        return time.monotonic() - started

    async with producer, client:
        await ask()
        num_sent = await send(2 * IN_FLIGHT)
        await ask()  # the worker is full until the partition counts as stalled: else for ever
        until, waits_s = time.monotonic() + STALL_S + 2, list[float]()
        while time.monotonic() < until or len(waits_s) < 20:
            waits_s.append(await ask())
            await asyncio.sleep(0.1)
        assert statistics.median(waits_s) < STALL_S  # the others wait no second time
        num_sent = await send(5)
        for letter in await letters_of(kafka, topic, 5):
            assert b"could not be delivered" in letter.headers["penstock-error-message"]
        release.touch()
        async with asyncio.timeout(300):
            while True:
                offsets = await committed(kafka, f"penstock.{model}")
                if sum(offsets.get(TopicPartition(topic, number), 0) for number in (0, 1)) > num_sent:
                    break
                await asyncio.sleep(0.2)
        await ask()
