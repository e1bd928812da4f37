"""Online and bulk requests together: bulk fills the remaining room and does not delay online requests."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaProducer

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client
from penstock.producer.wire.codec import encode_request
from penstock.producer.wire.headers import REPLY_TOPIC
from penstock.producer.wire.messages import Request, join_tokens
from penstock.worker.kafka.kafka_record import KafkaRecord
from tests.integration.conftest import Committed, StartWorker, Unique
from tests.integration.test_worker_consumer import consumer_of

NUM_BULK, NUM_ONLINE = 600, 12


def ids(number: int) -> list[int]:
    """No two sequences are equal, or they would be computed once."""
    return [1 + number // 1000, 1 + number % 1000]


@asynccontextmanager
async def both(broker: KafkaBroker, model: str) -> AsyncIterator[tuple[Client, Client]]:
    """An online client and a bulk one, of one sequence a record."""
    chosen: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "model": model}
    chosen |= {"timeout_s": 100, "sequences_per_record": 1, "batch_calls": False, "max_in_flight": 1000}
    async with Client(**chosen) as online, Client(**chosen, bulk=True) as bulk:
        yield online, bulk


async def test_online_requests_are_answered_while_bulk_saturates_the_worker(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker
) -> None:
    """The worker may hold 64 records, and bulk alone would keep it busy for two minutes."""
    model = unique("classes")
    worker = start_worker(kafka, served_name=model, echo_batch_s=0.2, max_batch_sequences=1, max_in_flight=64, lanes=1)
    async with both(kafka, model) as (online, bulk):
        await worker.ready()
        waiting = [asyncio.create_task(bulk.embed(ids=[ids(number)])) for number in range(NUM_BULK)]
        await worker.event("batch_done")
        done_before = []
        for number in range(NUM_ONLINE):
            vectors = await online.embed(ids=[ids(10_000 + number)])
            assert vectors[0, 1:3].tolist() == ids(10_000 + number)
            done_before.append(sum(task.done() for task in waiting))
        assert done_before[-1] < NUM_BULK / 2
        # An online request waits at most for the running batch, the prepared one and the bulk that fills its own.
        assert done_before[-1] - done_before[0] <= 4 * NUM_ONLINE
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_bulk_runs_beside_online_and_in_the_gaps_and_every_request_is_answered(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker
) -> None:
    model = unique("classes")
    worker = start_worker(kafka, served_name=model, max_in_flight=64)
    async with both(kafka, model) as (online, bulk):
        await worker.ready()
        waiting = [asyncio.create_task(bulk.embed(ids=[ids(number)])) for number in range(NUM_BULK)]
        for number in range(NUM_ONLINE):
            await online.embed(ids=[ids(10_000 + number)])
        vectors = await asyncio.gather(*waiting)
    assert [vector[0, 1:3].tolist() for vector in vectors] == [ids(number) for number in range(NUM_BULK)]
    triggers = {event["trigger"] for event in worker.events("batch_done")}
    assert "bulk" in triggers


async def test_a_job_works_both_topics_to_their_ends(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, committed: Committed
) -> None:
    model, replies = unique("classes"), unique("penstock.replies.")
    topic = f"penstock.requests.{model}"
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        for number in range(40):
            value = encode_request(Request(model, "embed", join_tokens([ids(number)])))
            headers = [(REPLY_TOPIC, replies.encode())]
            await producer.send_and_wait(topic + ".bulk" * (number % 2), value, headers=headers)
    worker = start_worker(kafka, served_name=model, once=True)
    assert await worker.exit_code() == 0
    offsets = await committed(kafka, f"penstock.{model}")
    taken = {
        name: sum(offset for source, offset in offsets.items() if source.topic == name)
        for name in (topic, topic + ".bulk")
    }
    assert taken == {topic: 20, topic + ".bulk": 20}


async def test_one_topic_rests_while_the_other_goes_on(kafka: KafkaBroker, unique: Unique) -> None:
    topic = unique("requests")
    topics = [topic, f"{topic}.bulk"]
    taken: list[tuple[str, bytes | None]] = []

    def received(records: Sequence[KafkaRecord], topic_id: bytes) -> None:
        taken.extend((record.topic, record.value) for record in records)

    reader = consumer_of(kafka, *topics, received=received)
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:

        async def send(value: bytes) -> None:
            for name in topics:
                await producer.send_and_wait(name, value)

        async def take(count: int) -> list[tuple[str, bytes | None]]:
            taken.clear()
            async with asyncio.timeout(300):
                while len(taken) < count:
                    await reader.poll(100)
            return sorted(taken)

        await send(b"first")
        await reader.start()
        assert await take(2) == [(name, b"first") for name in topics]
        reader.pause(topics[1])
        assert reader.is_paused
        await send(b"second")
        await producer.send_and_wait(topic, b"third")
        assert await take(2) == [(topic, b"second"), (topic, b"third")]
        reader.resume(topics[1])
        assert await take(1) == [(topics[1], b"second")]
    await reader.stop(10.0)
