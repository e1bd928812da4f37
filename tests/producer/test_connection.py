"""The watch of a connection tells of brokers that are away, and of topics that are denied. No broker."""

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaError, TopicAuthorizationFailedError
from structlog.testing import capture_logs

from penstock.producer.transport import connection

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
