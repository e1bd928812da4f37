"""The pace of fetches: several records at once at a high rate, but no wait at a low one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from penstock.producer.aiokafka_internals.fetch_messages import FetchMessage
from penstock.producer.aiokafka_internals.fetcher import LeanFetcher
from penstock.producer.aiokafka_internals.topic_ids import TopicIds
from penstock.producer.wire.topics import bulk_topic

SOURCE = TopicPartition("requests", 0)
ASKED = SimpleNamespace(faults=[])
VERSIONS = {FetchMessage.API_KEY: (4, 11)}  # that the broker knows


def lean(*arguments: Any, jumped: Any = None) -> Any:
    """A fetcher as a consumer makes it."""
    fetcher: Any = Fetcher(*arguments)
    fetcher.__class__ = LeanFetcher
    fetcher.begin(TopicIds(), jumped)
    return fetcher


@asynccontextmanager
async def reading(
    client: Any, *sources: TopicPartition, jumped: Any = None
) -> AsyncIterator[tuple[Any, SubscriptionState]]:
    """A fetcher of these partitions, each from offset 0."""
    subscriptions = SubscriptionState()
    subscriptions.subscribe({source.topic for source in sources})
    fetcher = lean(client, subscriptions, jumped=jumped)
    try:
        subscriptions.assign_from_subscribed(set(sources))
        for source in sources:
            subscriptions.seek(source, 0)
        yield fetcher, subscriptions
    finally:
        await fetcher.close()


class Broker:
    """aiokafka's part of one fetch: `records` are found when the fetcher takes them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[int] = []
        monkeypatch.setattr(Fetcher, "__init__", lambda fetcher: None)
        monkeypatch.setattr(LeanFetcher, "_take_parts", self._found)
        monkeypatch.setattr(Fetcher, "_proc_fetch_request", self._sent)

    async def _found(self, *_: Any) -> dict[TopicPartition, list[int]]:
        found, self.records = self.records, []
        return {SOURCE: found} if found else {}

    async def _sent(self, *_: Any) -> bool:
        return False


class Clock:
    now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("penstock.producer.aiokafka_internals.fetcher.time.monotonic", lambda: clock.now)
    return clock


async def fetch(broker: Broker, fetcher: Any, num_records: int) -> None:
    await fetcher._proc_fetch_request(None, 7, ASKED)
    broker.records = list(range(num_records))
    await fetcher.fetched_records([SOURCE])


@pytest.mark.parametrize(("num_records", "is_paced"), [(1, False), (2, False), (3, True), (200, True)])
async def test_at_a_high_rate_a_fetch_that_brought_several_records_is_followed_later(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, num_records: int, is_paced: bool
) -> None:
    broker = Broker(monkeypatch)
    fetcher = lean()
    for _ in range(4):
        await fetch(broker, fetcher, 20)
        clock.now += 0.006
    await fetch(broker, fetcher, num_records)  # what an earlier fetch has brought does not count
    assert fetcher._paced(clock.now + 0.001) == ({7: pytest.approx(0.005)} if is_paced else {})
    assert fetcher._paced(clock.now + 0.0061) == {}
    await fetcher._proc_fetch_request(None, 7, ASKED)
    assert fetcher._paced(clock.now + 0.001) == {}


@pytest.mark.parametrize(("per_s", "is_paced"), [(200, False), (350, False), (800, True), (8300, True)])
async def test_the_pace_begins_where_turns_would_keep_the_loop_busy(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, per_s: int, is_paced: bool
) -> None:
    broker = Broker(monkeypatch)
    fetcher = lean()
    for _ in range(12):
        await fetch(broker, fetcher, 5)
        clock.now += 5 / per_s
    await fetch(broker, fetcher, 5)
    assert bool(fetcher._paced(clock.now)) is is_paced


async def test_a_burst_after_a_rest_is_followed_at_once(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    broker = Broker(monkeypatch)
    fetcher = lean()
    await fetcher._proc_fetch_request(None, 7, ASKED)
    clock.now += 0.1  # for which the broker has held the fetch
    broker.records = list(range(30))
    await fetcher.fetched_records([SOURCE])
    assert fetcher._paced(clock.now) == {}


class Client:
    """aiokafka's client of one broker, which answers when a test says so."""

    _metadata_max_age_ms = 1000

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.answers: list[asyncio.Future[Any]] = []
        broker = SimpleNamespace(nodeId=7)
        self.cluster = SimpleNamespace(
            brokers=lambda: [broker], leader_for_partition=lambda source: broker.nodeId, _partitions={}
        )

    async def send(self, node: int, request: Any) -> Any:
        request.prepare(VERSIONS)
        self.answers.append(self._loop.create_future())
        return await self.answers[-1]


async def test_a_topic_of_which_brokers_do_not_know_the_id_is_not_fetched_until_it_is_read_anew() -> None:
    client: Any = Client()
    other = TopicPartition("others", 0)
    async with reading(client, SOURCE, other) as (fetcher, subscriptions):
        assignment = subscriptions.subscription.assignment
        fetcher._topic_ids.note_unknown(SOURCE.topic)
        [(_, request)], *_ = fetcher._get_actions_per_node(assignment)
        assert request.ids.keys() == {other.topic}
        client.get_random_node = lambda: 7
        client.send = answer_ids
        await fetcher._topic_ids.read(client, {SOURCE.topic})
        [(_, request)], *_ = fetcher._get_actions_per_node(assignment)
        assert request.ids.keys() == {SOURCE.topic, other.topic}


@pytest.mark.parametrize("has_id", [True, False])
async def test_a_deleted_topic_is_looked_up_by_its_id_and_not_by_metadata_without_end(has_id: bool) -> None:
    """A broker says of it that it does not know the topic, or within a session that it does not know the partition.

    One that is read by its name, as that of replies, has no id to look up.
    """
    client: Any = Client()
    client.get_random_node = lambda: 7
    client.send = answer_ids
    topic_ids = TopicIds()
    if has_id:
        await topic_ids.read(client, {SOURCE.topic})
    async with reading(client, SOURCE) as (fetcher, subscriptions):
        assignment = subscriptions.subscription.assignment
        request = FetchMessage(1, 1, 1, 0, partition_bytes=1, offsets={SOURCE.topic: {0: 0}}, topic_ids=topic_ids)

        async def answer(_node: int, asked: Any) -> Any:
            asked.note(SOURCE.topic, 0, 3)
            return SimpleNamespace(API_VERSION=11, topics=[])

        client.send = answer
        await fetcher._proc_fetch_request(assignment, 7, request)
        assert fetcher._topic_ids.is_unknown(SOURCE.topic) == has_id
        client.cluster.leader_for_partition = lambda source: None
        client.cluster._partitions = {}  # another metadata
        requests, unset, _, is_leader_unknown, _ = fetcher._get_actions_per_node(assignment)
        assert (requests, unset, is_leader_unknown) == ([], {}, not has_id)


async def test_metadata_is_asked_for_once_a_backoff_where_a_partition_that_is_read_has_no_leader(clock: Clock) -> None:
    """Not for a paused one: while the partitions of a deleted topic drain, there is no metadata to wait for."""
    client: Any = Client()
    client.cluster.leader_for_partition = lambda source: None
    async with reading(client, SOURCE) as (fetcher, subscriptions):
        assignment = subscriptions.subscription.assignment
        asked = []
        for _ in range(9):
            asked.append(fetcher._get_actions_per_node(assignment)[3])
            clock.now += fetcher._retry_backoff / 4
        assert asked == [True, False, False, False] * 2 + [True]
        clock.now += 1.0
        state = assignment.state_value(SOURCE)
        state.pause()
        *_, is_leader_unknown, resumed = fetcher._get_actions_per_node(assignment)
        assert not is_leader_unknown
        assert resumed == [state.resume_fut]


async def test_online_partitions_are_asked_for_before_bulk_ones() -> None:
    """A broker fills its answer in this order, up to the fetch size."""
    topics = "requests", bulk_topic("requests")
    sources = {TopicPartition(topic, number) for topic in topics for number in range(4)}
    async with reading(Client(), *sources) as (fetcher, subscriptions):
        [(_, request)], *_ = fetcher._get_actions_per_node(subscriptions.subscription.assignment)
        asked = [(topic, sorted(offsets)) for topic, offsets in request._offsets.items()]
        assert asked == [(topic, [0, 1, 2, 3]) for topic in topics]


async def answer_ids(_node: int, _request: object) -> Any:
    return SimpleNamespace(topics=[(0, SOURCE.topic, b"0123456789abcdef")])


@pytest.mark.parametrize("begins", [90, 3])
async def test_a_position_that_the_log_does_not_have_is_told_with_where_it_begins(begins: int) -> None:
    told: list[Any] = []
    async with reading(Client(), SOURCE, jumped=lambda *jump: told.append(jump)) as (fetcher, subscriptions):
        assignment = subscriptions.subscription.assignment
        subscriptions.seek(SOURCE, 10)
        offsets = {SOURCE.topic: {0: 10}}
        request = FetchMessage(1, 1, 1, 0, partition_bytes=1, offsets=offsets, topic_ids=TopicIds())
        request.prepare(VERSIONS)

        async def answer(_node: int, asked: Any) -> Any:
            if asked is request:
                asked.note(SOURCE.topic, 0, 1)
                return SimpleNamespace(API_VERSION=11, topics=[(SOURCE.topic, [(0, 1, -1, -1, -1, [], -1, b"")])])
            return SimpleNamespace(API_VERSION=2, topics=[(SOURCE.topic, [(0, 0, -1, begins)])])

        fetcher._client.send = answer
        await fetcher._proc_fetch_request(assignment, 7, request)
        assert told == []
        await fetcher._update_fetch_positions(assignment, 7, [SOURCE])
        assert told == [(SOURCE, 10, begins)]
        await fetcher._update_fetch_positions(assignment, 7, [SOURCE])
        assert len(told) == 1


async def test_a_broker_whose_answer_comes_with_a_new_assignment_is_asked_at_once() -> None:
    client = Client()
    async with reading(client, SOURCE) as (_, subscriptions):
        for num_asked in (1, 2):
            subscriptions.assign_from_subscribed({SOURCE})
            subscriptions.seek(SOURCE, 0)
            for answer in client.answers:
                answer.set_result(SimpleNamespace(API_VERSION=11, topics=[]))
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(client.answers) == num_asked


def answer(**num_records: int) -> Any:
    """A broker's answer: so many records of each partition, `p0`, `p1`, …"""
    partitions: list[tuple[Any, ...]] = []
    for name, count in num_records.items():
        builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 24)
        for index in range(count):
            builder.append(index, 0, None, b"", [])
        partitions.append((int(name[1:]), 0, count, count, 0, [], -1, bytes(builder.build())))
    return SimpleNamespace(API_VERSION=11, topics=[(SOURCE.topic, partitions)])


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_partition_with_very_many_records_is_handed_out_in_parts_beside_the_others() -> None:
    client = Client()
    async with reading(client, *[TopicPartition(SOURCE.topic, number) for number in range(3)]) as (fetcher, _):
        await turns()
        client.answers[0].set_result(answer(p0=100_000, p1=2))
        await turns()
        first = await fetcher.fetched_records((), 1)
        assert [(source.partition, len(records)) for source, records in first.items()] == [(1, 2), (0, 512)]
        await turns()
        assert len(client.answers) == 2  # the broker is asked for the other partitions
        client.answers[1].set_result(answer(p2=3))
        await turns()
        second = await fetcher.fetched_records((), 1)
        assert [(source.partition, len(records)) for source, records in second.items()] == [(2, 3), (0, 512)]
        assert second[SOURCE][0].offset == 512


async def test_what_was_fetched_of_a_paused_partition_stays_until_it_is_resumed() -> None:
    client = Client()
    async with reading(client, SOURCE) as (fetcher, subscriptions):
        await turns()
        client.answers[0].set_result(answer(p0=5000))
        await turns()
        assert len((await fetcher.fetched_records((), 1))[SOURCE]) == 1024
        state = subscriptions.subscription.assignment.state_value(SOURCE)
        state.pause()
        assert await fetcher.fetched_records((), 0) == {}
        state.resume()
        assert [record.offset for record in (await fetcher.fetched_records((), 0))[SOURCE]] == list(range(1024, 2048))
        assert len(client.answers) == 1  # nothing was fetched again
