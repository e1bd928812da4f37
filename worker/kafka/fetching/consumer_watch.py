"""Topics that Kafka denies to a consumer, and background tasks of it that have ended; aiokafka reports neither."""

import asyncio
import time
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet

import structlog

from penstock.producer.aiokafka_internals.group_consumer import GroupConsumer

_EVERY_S = 3.0
_REFUSED_S = 5.0  # a fetch that was refused counts for so long: the user may still describe the topic
_NEEDS = "Its user needs the ACL READ on the topic."

log = structlog.get_logger("penstock.consumer")


class ConsumerFailed(Exception):
    """A background task of aiokafka has ended, and nothing starts it again."""


class ConsumerWatch:
    """Called on the worker's event loop.

    aiokafka asks for metadata every 30 s, and the group's leader deals a topic again once its metadata is back. While
    a topic is denied or unknown, this asks every `_EVERY_S`: its records are read soon after the privilege returns.
    """

    def __init__(self, topics: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        """`topics`: that the consumer subscribes to."""
        self.denied: AbstractSet[str] = frozenset()
        self._topics = topics
        self._clock = clock
        self._refused_at: dict[str, float] = {}

    async def run(self, consumer: GroupConsumer) -> None:
        """Look every few seconds, until cancelled. Raises ConsumerFailed."""
        while True:
            await asyncio.sleep(_EVERY_S)
            self.look(consumer)

    def refused(self, consumer: GroupConsumer, topics: Collection[str]) -> None:
        """Note that Kafka has refused a fetch of these topics."""
        self._refused_at |= dict.fromkeys(topics, self._clock())
        self.look(consumer)

    def look(self, consumer: GroupConsumer) -> None:
        """Log what has changed, and ask for metadata that is missing. Raises ConsumerFailed."""
        for what, error in consumer.ended_tasks().items():
            raise ConsumerFailed(f"aiokafka's task for {what} has ended.") from error
        client, recent = consumer.client, self._clock() - _REFUSED_S
        unauthorized = client.cluster.unauthorized_topics
        denied = {one for one in self._topics if one in unauthorized or self._refused_at.get(one, recent) > recent}
        for topic in sorted(denied - self.denied):
            log.error("topic_denied", topic=topic, hint=_NEEDS)
        for topic in sorted(self.denied - denied):
            log.info("topic_allowed", topic=topic)
        self.denied = denied
        if denied or any(client.cluster.partitions_for_topic(topic) is None for topic in self._topics):
            client.force_metadata_update()
