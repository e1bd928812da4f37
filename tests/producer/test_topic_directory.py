"""Topics that records are sent to: few are known at a time, the missing are forgotten, and looks are bounded."""

import asyncio
from typing import Any

import pytest
from aiokafka.errors import KafkaConnectionError, UnknownTopicOrPartitionError

from penstock.producer.transport import topic_directory as module
from penstock.producer.transport.topic_directory import TopicDirectory


class Producer:
    """A fake of aiokafka's producer, and of its client and cluster. A topic that is not in `there` is missing."""

    def __init__(self) -> None:
        self.client = self.cluster = self
        self.there: dict[str, int] = {}  # topic -> its partitions as the broker has them
        self.known: dict[str, int] = {}  # as of the last refresh
        self.asked: list[str] = []
        self.num_refreshes = 0
        self.has_broker = True
        self.in_use: set[str] = set()

    async def partitions_for(self, topic: str) -> set[int]:
        self.asked.append(topic)
        self.in_use.add(topic)
        self.known[topic] = self.known.get(topic) or self.there.get(topic, 0)
        if not self.known[topic]:
            raise UnknownTopicOrPartitionError(topic)
        return set(range(self.known[topic]))

    def forget(self, topic: str) -> None:
        self.in_use.discard(topic)

    async def force_metadata_update(self) -> bool:
        self.num_refreshes += 1
        await asyncio.sleep(0)
        self.known = {topic: self.there.get(topic, 0) for topic in self.in_use}
        return self.has_broker

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self.known[topic])) if self.known.get(topic) else None

    def topics(self) -> set[str]:
        return {topic for topic, number in self.known.items() if number}


@pytest.fixture
def now() -> list[float]:
    """The time, in seconds, as its only item."""
    return [0.0]


@pytest.fixture
def directory(now: list[float], monkeypatch: pytest.MonkeyPatch) -> TopicDirectory:
    async def pass_time(seconds: float) -> None:
        now[0] += max(0.0, seconds)
        await real_sleep(0)

    real_sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", pass_time)
    return TopicDirectory(lambda: now[0])


async def test_a_partition_that_is_known_is_not_asked_for(directory: TopicDirectory) -> None:
    producer: Any = Producer()
    producer.there["t"] = 2
    for partition in 0, 1, 0:
        await directory.check_partition(producer, "t", partition)
    assert producer.asked == ["t"]


async def test_a_missing_topic_is_forgotten_and_not_asked_for_again_for_a_while(
    directory: TopicDirectory, now: list[float]
) -> None:
    producer: Any = Producer()
    for _ in range(3):
        with pytest.raises(UnknownTopicOrPartitionError, match="x does not exist"):
            await directory.partitions(producer, "x")
    assert producer.asked == ["x"]
    assert not producer.in_use
    now[0] += 31
    producer.there["x"] = 2
    assert await directory.partitions(producer, "x") == {0, 1}


async def test_a_topic_is_not_missing_while_no_broker_answers(directory: TopicDirectory) -> None:
    producer: Any = Producer()
    producer.has_broker = False
    with pytest.raises(KafkaConnectionError):
        await directory.partitions(producer, "x")
    producer.has_broker, producer.there, producer.known = True, {"x": 1}, {}
    assert await directory.partitions(producer, "x") == {0}


async def test_no_more_topics_than_the_bound_are_in_use_and_idle_ones_make_room(
    directory: TopicDirectory, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_TOPICS", 3)
    producer: Any = Producer()
    producer.there = dict.fromkeys("abcd", 1)
    for topic in "abc":
        await directory.partitions(producer, topic)
    with pytest.raises(UnknownTopicOrPartitionError, match="3 other topics are in use"):
        await directory.partitions(producer, "d")
    assert "d" not in producer.asked  # a broker would have created it
    now[0] += 500
    await directory.partitions(producer, "a")
    now[0] += 500
    assert await directory.partitions(producer, "d") == {0}
    assert producer.in_use == {"a", "d"}


async def test_an_added_partition_is_found_by_one_look(directory: TopicDirectory) -> None:
    producer: Any = Producer()
    producer.there["x"] = 1
    await directory.check_partition(producer, "x", 0)
    producer.there["x"] = 2
    await directory.check_partition(producer, "x", 1)
    assert producer.num_refreshes == 1


async def test_looks_for_partitions_that_are_not_there_are_shared_and_a_second_apart(
    directory: TopicDirectory, now: list[float]
) -> None:
    producer: Any = Producer()
    producer.there["x"] = 1
    for _ in range(3):
        looks = [directory.check_partition(producer, "x", number) for number in range(1, 50)]
        failed = await asyncio.gather(*looks, return_exceptions=True)
        assert {type(one) for one in failed} == {UnknownTopicOrPartitionError}
    assert producer.num_refreshes <= now[0] + 1
    assert producer.num_refreshes < 7
