"""Workers join, leave and die while requests stream: every request is answered."""

import asyncio
import itertools
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any

import msgpack
from aiokafka import AIOKafkaProducer, TopicPartition

from penstock.ops.kafka import KafkaBroker
from penstock.producer import Client
from penstock.producer.transport.cluster import KafkaCluster
from penstock.worker.kafka.fetching.group import evict
from tests.integration.conftest import Committed, StartWorker, Unique, only_member, reader_of


class Stream:
    """Callers that send one request after another until stopped. Each answer is checked."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._numbers = itertools.count(1)
        self._stopped = False
        self._progress = asyncio.Event()
        self.answered = 0

    async def _call(self) -> None:
        while not self._stopped:
            number = next(self._numbers) % 30_000
            vectors = await self._client.embed(ids=[[number, 5]], timeout_s=300)
            assert vectors.tolist() == [[2, number, 5, number + 5]]
            self.answered += 1
            self._progress.set()

    async def more(self, count: int) -> None:
        """Wait until `count` further requests are answered."""
        goal = self.answered + count
        async with asyncio.timeout(300):
            while self.answered < goal:
                self._progress.clear()
                await self._progress.wait()


@asynccontextmanager
async def streaming(kafka: KafkaBroker, model: str) -> AsyncIterator[Stream]:
    """Send requests to `model` inside. On leaving, every one of them must be answered."""
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, batch_calls=False) as client:
        stream = Stream(client)
        async with asyncio.TaskGroup() as group:
            for _ in range(32):
                group.create_task(stream._call())
            yield stream
            stream._stopped = True


async def test_a_worker_joins_and_another_leaves_mid_stream(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker
) -> None:
    model = unique("shared")
    first = start_worker(kafka, served_name=model)
    async with streaming(kafka, model) as stream:
        await stream.more(200)
        second = start_worker(kafka, served_name=model)
        await second.event("batch_done")
        await stream.more(200)
        await first.stop()
        await stream.more(200)
    await second.stop()
    # In an orderly rebalance no request is even answered twice.
    assert sum(worker.events("stopped")[0]["answered"] for worker in (first, second)) == stream.answered
    assert [drained["unfinished"] for worker in (first, second) for drained in worker.events("drained")].count(0) >= 3


async def test_a_worker_killed_mid_stream_loses_nothing(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker
) -> None:
    model = unique("killed")
    group = f"penstock.{model}"
    first = start_worker(kafka, served_name=model)
    await first.ready()
    member = await only_member(kafka, group)
    second = start_worker(kafka, served_name=model)
    async with streaming(kafka, model) as stream:
        await asyncio.gather(first.event("batch_done"), second.event("batch_done"))
        await stream.more(100)
        first.process.kill()
        await evict(KafkaCluster(kafka.bootstrap_servers), group, member)
        topics = [f"penstock.requests.{model}", f"penstock.requests.{model}.bulk"]
        await second.event("partitions_assigned", partitions=dict.fromkeys(topics, "0-7"))
        await stream.more(200)


async def test_a_restart_resumes_at_the_unfinished_offsets(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, committed: Committed
) -> None:
    """Killed when some answers are out, some are computed and most are queued; the next worker finishes."""
    model, inbox = unique("restarted"), TopicPartition(unique("penstock.replies."), 0)
    topic, group = f"penstock.requests.{model}", f"penstock.{model}"
    settings = {"served_name": model, "max_batch_sequences": 4, "lanes": 1}
    first = start_worker(kafka, echo_batch_s=0.25, **settings)
    await first.ready()
    producer = AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    consumer = reader_of(kafka)
    async with producer, consumer:
        await producer.partitions_for(inbox.topic)
        consumer.assign([inbox])
        for n in range(200):
            ids, lens = struct.pack("<2I", n + 1, 5), struct.pack("<I", 2)
            value = {"v": 1, "model": model, "task": "embed", "ids": ids, "lens": lens}
            headers = [("kafka_correlationId", b"%d" % n), ("kafka_replyTopic", inbox.topic.encode())]
            headers.append(("kafka_replyPartition", bytes(4)))
            await producer.send(topic, msgpack.packb(value), headers=headers)
        await producer.flush()
        keys: dict[int, set[bytes]] = {}

        async def receive(until: int) -> None:
            async with asyncio.timeout(300):
                while len(keys) < until:
                    record = await consumer.getone()
                    n = int(dict(record.headers)["kafka_correlationId"])
                    assert struct.unpack("<4f", msgpack.unpackb(record.value)["data"]) == (2, n + 1, 5, n + 6)
                    keys.setdefault(n, set()).add(record.key)

        async def done() -> int:
            return sum((await committed(kafka, group)).values())

        await receive(40)
        async with asyncio.timeout(300):
            while not await done():  # noqa: ASYNC110 — there is no event to wait for
                await asyncio.sleep(0.05)
        first.process.kill()
        await first.exit_code()
        done_by_first = await done()
        second = start_worker(kafka, **settings)
        await receive(200)
        assert all(len(of_one) == 1 for of_one in keys.values())  # a second answer carries the key of the first
        await second.stop()
        assert 0 < done_by_first < 200
        assert (
            second.events("stopped")[0]["answered"] == 200 - done_by_first
        )  # committed records are not processed again
        ends = {
            source: end
            for source, end in (await consumer.end_offsets([TopicPartition(topic, p) for p in range(8)])).items()
            if end
        }
    assert {source: offset for source, offset in (await committed(kafka, group)).items() if offset} == ends


async def test_once_processes_up_to_the_end_and_exits(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, committed: Committed
) -> None:
    model = unique("once")
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, batch_calls=False) as client:
        calls = [asyncio.create_task(client.embed(ids=[[n + 1]])) for n in range(100)]
        await asyncio.sleep(0)
        await client._exchange._outbox.flush()  # all of them are in the topic
        # Slower than the drain's bound: the run ends with its last answer, not with its last record.
        worker = start_worker(
            kafka, served_name=model, once=True, drain_s=0.5, echo_batch_s=0.05, max_batch_sequences=2, lanes=1
        )
        vectors = await asyncio.gather(*calls)
        assert [vector[0, 1] for vector in vectors] == list(range(1, 101))
        assert await worker.exit_code() == 0
    assert worker.events("stopped")[0]["answered"] == 100
    assert sum((await committed(kafka, f"penstock.{model}")).values()) == 100
    again = start_worker(kafka, served_name=model, once=True)
    assert await again.exit_code() == 0
    assert again.events("stopped")[0]["answered"] == 0


async def test_a_drain_that_takes_too_long_ends_and_leaves_its_records_to_other_workers(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, committed: Committed
) -> None:
    model = unique("slow")
    settings = {"served_name": model, "max_batch_sequences": 1, "lanes": 1}
    slow = start_worker(kafka, drain_s=0.5, echo_batch_s=0.1, **settings)
    await slow.ready()
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, batch_calls=False) as client:
        calls = [asyncio.create_task(client.embed(ids=[[n + 1, 5]])) for n in range(100)]
        await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        await slow.stop()
        assert slow.events("drain_incomplete")[0]["unfinished"] > 0
        left = 100 - sum((await committed(kafka, f"penstock.{model}")).values())
        assert left > 0
        quick = start_worker(kafka, **settings)
        await asyncio.gather(*calls)
        await quick.stop()
    assert quick.events("stopped")[0]["answered"] == left


async def test_a_rebalance_waits_for_no_queued_bulk(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker
) -> None:
    """The backlog would take the first worker 40 s. It has 30 s to drain."""
    model = unique("bulk")
    slow = {"echo_batch_s": 0.2, "max_batch_sequences": 10, "lanes": 1, "drain_s": 30.0}
    first = start_worker(kafka, served_name=model, **slow)
    await first.ready()
    rows = [[number, 5] for number in range(1, 2001)]
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, bulk=True) as client:
        calls = []
        for n in range(0, 2000, 50):
            calls.append(asyncio.create_task(client.embed(ids=rows[n : n + 50], timeout_s=300)))
            await asyncio.sleep(0.002)  # calls of one moment share a partition, which may not be the second worker's
        await first.event("batch_done")
        second = start_worker(kafka, served_name=model)  # it is fast
        drained = await first.event("drained", timeout_s=300)
        answers = await asyncio.gather(*calls)
    assert num_batches(first, ended(drained) - drained["seconds"], ended(drained)) < 30  # of 200
    assert [vector for answer in answers for vector in answer.tolist()] == [[2, n, 5, n + 5] for n, _ in rows]
    await first.stop()
    assert second.events("batch_done")


async def test_a_joining_worker_answers_soon_however_much_the_others_have_queued(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker
) -> None:
    """The backlog would take the first worker a minute. It has as long to drain, and the group would wait for it."""
    model = unique("joining")
    slow = {"echo_batch_s": 0.2, "max_batch_sequences": 1, "lanes": 1, "drain_s": 60.0}
    first = start_worker(kafka, served_name=model, **slow)
    await first.ready()
    async with Client(bootstrap_servers=kafka.bootstrap_servers, model=model, batch_calls=False) as client:
        calls = [asyncio.create_task(client.embed(ids=[[n + 1, 5]], timeout_s=300)) for n in range(300)]
        await first.event("batch_done")
        second = start_worker(kafka, served_name=model, metrics_port=0)  # it is fast
        done = await second.event("batch_done")
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
    [warm] = second.events("metrics_served")  # the last event before it connects
    assert num_batches(first, ended(warm), ended(done)) < 150  # of 300, in the 5 s that are promised, or 30
    assert not first.events("drain_incomplete")


def ended(event: dict[str, Any]) -> float:
    """When an event was logged, in Unix seconds."""
    return datetime.fromisoformat(event["timestamp"]).timestamp()


def num_batches(worker: Any, since: float, until: float) -> int:
    """How many batches ended meanwhile. None does while the machine stands still."""
    return sum(since <= ended(event) <= until for event in worker.events("batch_done"))
