"""The pace of fetches: several records at once at a high rate, but no wait at a low one."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.consumer.subscription_state import SubscriptionState

from penstock.worker.kafka.fetching.lean_fetcher import LeanFetcher

SOURCE = TopicPartition("requests", 0)


class Broker:
    """aiokafka's part of one fetch: `records` are found when the fetcher takes them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records: list[int] = []
        monkeypatch.setattr(Fetcher, "__init__", lambda fetcher: None)
        monkeypatch.setattr(Fetcher, "fetched_records", self._found)
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
    monkeypatch.setattr("penstock.worker.kafka.fetching.lean_fetcher.time.monotonic", lambda: clock.now)
    return clock


async def fetch(broker: Broker, fetcher: Any, num_records: int) -> None:
    await fetcher._proc_fetch_request(None, 7, None)
    broker.records = list(range(num_records))
    await fetcher.fetched_records([SOURCE])


@pytest.mark.parametrize(("num_records", "is_paced"), [(1, False), (2, False), (3, True), (200, True)])
async def test_at_a_high_rate_a_fetch_that_brought_several_records_is_followed_later(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, num_records: int, is_paced: bool
) -> None:
    broker = Broker(monkeypatch)
    fetcher: Any = LeanFetcher()
    for _ in range(4):
        await fetch(broker, fetcher, 20)
        clock.now += 0.006
    await fetch(broker, fetcher, num_records)  # what an earlier fetch has brought does not count
    assert fetcher._paced(clock.now + 0.001) == ({7: pytest.approx(0.005)} if is_paced else {})
    assert fetcher._paced(clock.now + 0.0061) == {}
    await fetcher._proc_fetch_request(None, 7, None)
    assert fetcher._paced(clock.now + 0.001) == {}


@pytest.mark.parametrize(("per_s", "is_paced"), [(200, False), (350, False), (800, True), (8300, True)])
async def test_the_pace_begins_where_turns_would_keep_the_loop_busy(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, per_s: int, is_paced: bool
) -> None:
    broker = Broker(monkeypatch)
    fetcher: Any = LeanFetcher()
    for _ in range(12):
        await fetch(broker, fetcher, 5)
        clock.now += 5 / per_s
    await fetch(broker, fetcher, 5)
    assert bool(fetcher._paced(clock.now)) is is_paced


async def test_a_burst_after_a_rest_is_followed_at_once(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    broker = Broker(monkeypatch)
    fetcher: Any = LeanFetcher()
    await fetcher._proc_fetch_request(None, 7, None)
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
        self.cluster = SimpleNamespace(brokers=lambda: [broker], leader_for_partition=lambda source: broker.nodeId)

    async def send(self, node: int, request: Any) -> Any:
        self.answers.append(self._loop.create_future())
        return await self.answers[-1]


async def test_a_broker_whose_answer_comes_with_a_new_assignment_is_asked_at_once() -> None:
    client, subscriptions = Client(), SubscriptionState()
    subscriptions.subscribe({SOURCE.topic})
    fetcher: Any = LeanFetcher(client, subscriptions)
    try:
        for num_asked in (1, 2):
            subscriptions.assign_from_subscribed({SOURCE})
            subscriptions.seek(SOURCE, 0)
            for answer in client.answers:
                answer.set_result(SimpleNamespace(API_VERSION=11, topics=[]))
            for _ in range(20):
                await asyncio.sleep(0)
            assert len(client.answers) == num_asked
    finally:
        await fetcher.close()
