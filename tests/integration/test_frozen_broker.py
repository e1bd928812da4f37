"""A broker that hangs with its connections open, or is away: what goes on without it. Three real brokers."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError

from penstock.ops.kafka import BrokerCluster, KafkaBroker
from penstock.producer import Client
from penstock.producer.wire.topics import request_topic
from tests.engine.helpers import save_sentence_transformer
from tests.integration.conftest import open_admin
from tests.integration.test_routes import WORDS, Sent, read, send

Unique = Callable[[str], str]
StartWorker = Callable[..., Any]
Ask = Callable[[KafkaBroker, str], Any]  # the fixtures `committed` and `count_records`

PARTITIONS = 6
# A failover takes the cluster's session timeout of 3 s, and about 3 s more. aiokafka's own time-out is 40 s.
BOUND_S = 35.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[BrokerCluster]:
    with BrokerCluster(num_partitions=PARTITIONS) as own:
        yield own


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_requests_are_answered_and_committed_while_the_leader_of_their_replies_hangs(
    cluster: BrokerCluster, unique: Unique, start_worker: StartWorker, committed: Ask, count_records: Ask, delivery: str
) -> None:
    """It coordinates the group too, and leads a third of the request partitions."""
    model, replies = unique("m"), unique("penstock.replies.")
    number = await make_reply_topic(cluster, replies, f"penstock.{model}")
    hanging, healthy = cluster.nodes[number - 1], cluster.nodes[number % 3]
    worker = start_worker(cluster, served_name=model, delivery=delivery, partitions=PARTITIONS)
    isolation: Any = "read_committed" if delivery == "exactly_once" else "read_uncommitted"

    def make_client(connect_timeout_s: float = BOUND_S) -> Client:
        return Client(
            bootstrap_servers=cluster.bootstrap_servers,
            model=model,
            reply_topic=replies,
            timeout_s=BOUND_S,
            connect_timeout_s=connect_timeout_s,
            isolation_level=isolation,
            batch_calls=False,
        )

    async with make_client() as client:
        await worker.ready()

        async def all_are_committed() -> None:
            num_requests = await count_records(healthy, request_topic(model))
            async with asyncio.timeout(BOUND_S):
                while sum((await committed(healthy, f"penstock.{model}")).values()) < num_requests:  # noqa: ASYNC110  # Kafka has no event
                    await asyncio.sleep(0.2)

        await embed(client, 60)
        # A transaction that is ending when a broker hangs waits for the other brokers' request.timeout.ms of 30 s.
        await all_are_committed()
        hanging.suspend()
        try:
            assert await embed(client, 60) == list(range(1, 61))
            await all_are_committed()
            # Whichever broker it asks first: two answers are awaited for 5 s each. One start took more than 30 s once,
            # on a busy machine, so it has the time for a request that aiokafka gives up after 40 s.
            async with asyncio.timeout(4 * BOUND_S), make_client(connect_timeout_s=3 * BOUND_S) as another:
                assert await embed(another, 1) == [1]
        finally:
            hanging.resume()
        assert await embed(client, 60) == list(range(1, 61))
        if delivery == "at_least_once":  # transactions leave markers too
            # The broker that has just gone on may still take itself for the leader, and knows of 60.
            async with asyncio.timeout(BOUND_S):
                while (count := await count_records(healthy, replies)) < 181:  # noqa: ASYNC110  # Kafka has no event
                    await asyncio.sleep(0.2)
            assert count == 181
    assert worker.events("reply_undeliverable") == []
    await worker.stop()


async def embed(client: Client, count: int) -> list[int]:
    vectors = await asyncio.gather(*[client.embed(ids=[[n + 1]]) for n in range(count)])
    return [int(vector[0, 1]) for vector in vectors]


async def make_reply_topic(cluster: BrokerCluster, topic: str, group: str) -> int:
    """Create a topic of one partition, led by the coordinator of the group. Returns that node's number."""
    async with open_admin(cluster) as admin:
        async with asyncio.timeout(300):
            leader = await coordinator(admin, group)
            while leader is None or len((await admin.describe_cluster())["brokers"]) < len(cluster.nodes):
                await asyncio.sleep(0.1)
                leader = await coordinator(admin, group)
        others = [number for number in (1, 2, 3) if number != leader]
        await admin.create_topics([NewTopic(topic, -1, -1, replica_assignments={0: [leader, *others]})])
    return leader


async def coordinator(admin: AIOKafkaAdminClient, group: str) -> int | None:
    try:
        number: int = await admin.find_coordinator(group)
    except KafkaError:  # the topic of commits is being created
        return None
    return number


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("routed")
    save_sentence_transformer(directory, WORDS)
    return directory / "model"


async def test_outputs_that_wait_are_withdrawn_when_their_partitions_move(
    cluster: BrokerCluster, unique: Unique, start_worker: StartWorker, model: Path
) -> None:
    """The output topic has no leader until two workers share the input. Each record comes out once, in its order."""
    source, output, group = unique("orders"), unique("enriched"), unique("group")
    async with open_admin(cluster) as admin, asyncio.timeout(300):
        while (busy := await coordinator(admin, group)) is None:  # noqa: ASYNC110  # Kafka has no event
            await asyncio.sleep(0.1)
        others = [number for number in (1, 2, 3) if number != busy % 3 + 1]
        places = {source: others, output: [busy % 3 + 1]}
        topics = [
            NewTopic(topic, -1, -1, replica_assignments=dict.fromkeys(range(4), own)) for topic, own in places.items()
        ]
        await admin.create_topics(topics)
    settings = {
        "model": model,
        "served_name": unique("routed"),
        "group_id": group,
        "input_topic": source,
        "output_topic": output,
        "text": "text",
        "drain_s": 1,
    }
    first, leader = await start_worker(cluster, **settings).ready(), cluster.nodes[busy % 3]
    await asyncio.to_thread(leader.kill)
    values = [b'{"n": %d, "text": "w%d"}' % (n, n % 30) for n in range(300)]
    healthy = cluster.nodes[busy - 1]
    await send(healthy, source, [Sent(b"k%d" % (n % 20), value) for n, value in enumerate(values)])
    await first.event("batch_done")
    second = await start_worker(cluster, **settings).ready()
    await first.event("outputs_on_their_way")
    await asyncio.to_thread(leader.start)
    enriched = await read(first, healthy, output, len(values))
    await first.stop()
    await second.stop()
    assert sorted(json.loads(one.value)["n"] for one in enriched) == list(range(len(values)))
    for key in {one.key for one in enriched}:
        numbers = [json.loads(one.value)["n"] for one in enriched if one.key == key]
        assert numbers == sorted(numbers)
