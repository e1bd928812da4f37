"""The watch of a connection tells of brokers that are away, and of topics that are denied. No broker."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    NotControllerError,
    RequestTimedOutError,
    TopicAuthorizationFailedError,
)
from structlog.testing import capture_logs

from penstock.producer.transport import connection
from penstock.producer.transport.cluster import KafkaCluster, KafkaRefused

ALLOWED, DENIED = TopicPartition("allowed", 0), TopicPartition("denied", 0)


class FakeConsumer:
    """Answers each question with the next error of a script, if it is one."""

    def __init__(self, script: list[KafkaError | None]) -> None:
        self.script = script
        self.asked: list[list[TopicPartition]] = []
        self.ended = asyncio.Event()

    def assignment(self) -> list[TopicPartition]:
        return [DENIED, ALLOWED]

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return None if topic == "denied" else {0}

    async def end_offsets(self, sources: list[TopicPartition]) -> dict[TopicPartition, int]:
        self.asked.append(sources)
        error = self.script.pop(0)
        if not self.script:
            self.ended.set()
        if error is not None:
            raise error
        return {}


@pytest.mark.parametrize(
    ("script", "events"),
    [
        ([None, KafkaConnectionError(), KafkaConnectionError(), None, None], ["kafka_unreachable", "kafka_back"]),
        ([None, TopicAuthorizationFailedError("allowed"), None], []),
        ([KafkaConnectionError(), TopicAuthorizationFailedError("allowed")], ["kafka_unreachable"]),
    ],
)
async def test_brokers_that_are_away_are_told_from_topics_that_are_denied(
    monkeypatch: pytest.MonkeyPatch, script: list[KafkaError | None], events: list[str]
) -> None:
    monkeypatch.setattr(connection, "_WATCH_EVERY_S", 0.0)
    consumer: Any = FakeConsumer(list(script))
    with capture_logs() as logs:
        watching = asyncio.create_task(connection.watch(consumer))
        await asyncio.wait_for(consumer.ended.wait(), 60)
        await asyncio.sleep(0)
        watching.cancel()
    assert [one["event"] for one in logs] == events
    assert consumer.asked[0] == [ALLOWED]  # the others' ends are asked for in vain


class FakeAdmin:
    """Fails as a script says, then creates all topics that it is asked for."""

    def __init__(self, script: list[Exception | int]) -> None:
        self.script = script
        self.topics: list[str] = []

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def list_topics(self) -> list[str]:
        return self.topics

    async def describe_cluster(self) -> dict[str, list[int]]:
        return {"brokers": [1]}

    async def create_topics(self, topics: Sequence[NewTopic]) -> SimpleNamespace:
        outcome = self.script.pop(0) if self.script else 0
        if isinstance(outcome, Exception):
            raise outcome
        first, *others = [topic.name for topic in topics]
        self.topics += others if outcome else [first, *others]
        return SimpleNamespace(topic_errors=[(first, outcome), *[(topic, 0) for topic in others]])


@pytest.mark.parametrize(
    ("script", "created", "event"),
    [
        ([], ["here", "there"], "topics_created"),
        ([NotControllerError.errno, TimeoutError()], ["there", "here"], "topics_created"),
        ([RequestTimedOutError(), RequestTimedOutError()], ["here", "there"], "topics_created"),
        ([TopicAuthorizationFailedError.errno], ["there"], "topics_created"),
        ([AttributeError("no controller")], [], "topics_not_created"),
        ([KafkaConnectionError()] * 9, [], "topics_not_created"),
    ],
)
async def test_a_topic_is_asked_for_again_where_what_refused_it_passes(
    monkeypatch: pytest.MonkeyPatch, script: list[Exception | int], created: list[str], event: str
) -> None:
    admin = FakeAdmin(list(script))
    monkeypatch.setattr(connection, "FailoverAdmin", lambda **_: admin)
    monkeypatch.setattr(connection, "_CREATION_PAUSES_S", (0.0, 0.0, 0.0))
    with capture_logs() as logs:
        await connection.ensure_topics(KafkaCluster("localhost:9092"), ["here", "there"], 8)
    assert admin.topics == created
    (one,) = logs
    assert one["event"] == event
    if event == "topics_created":
        assert one["topics"] == created


class FakeClient:
    """Does not start, as a script says; then it does."""

    def __init__(self, script: list[KafkaError]) -> None:
        self.script = script
        self.num_stopped = 0

    async def start(self) -> None:
        if self.script:
            raise self.script.pop(0)

    async def stop(self) -> None:
        self.num_stopped += 1


@pytest.mark.parametrize("refused", [True, False])
async def test_what_kafka_refuses_ends_the_attempts_and_what_passes_does_not(
    monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    async def refusal(self: KafkaCluster) -> KafkaRefused | None:
        return KafkaRefused("wrong password") if refused else None

    monkeypatch.setattr(KafkaCluster, "refusal", refusal)
    monkeypatch.setattr(connection, "_FIRST_RETRY_S", 0.0)
    client: Any = FakeClient([KafkaConnectionError(), KafkaConnectionError()])
    cluster = KafkaCluster("kafka:9092", {}, 60.0)
    if refused:
        with pytest.raises(KafkaRefused, match="wrong password"):
            await connection.connect(cluster, lambda: client)
        assert client.num_stopped == 1
    else:
        assert await connection.connect(cluster, lambda: client) is client
        assert client.num_stopped == 2
