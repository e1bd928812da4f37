"""The partitions of topics that records are sent to: a bounded number of topics, asked for at a bounded rate.

A request names its reply topic, so a worker meets any number of names, also of topics that do not exist. aiokafka 0.14
asks for a missing topic for 40 s, and for every name it has met at each refresh. Brokers may create what is asked for.
"""

import asyncio
import time
from collections.abc import Callable

from aiokafka.errors import KafkaConnectionError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from penstock.producer.aiokafka_internals.producer import FailoverProducer

MAX_TOPICS = 1000
_IDLE_S = 600.0  # after which a topic makes room for another
_CREATION_S = 10.0  # within which a broker creates a topic
_MISSING_S = 30.0  # for which a missing topic is not asked for again
_MAX_MISSING = 10_000
_REFRESH_S = 1.0  # the shortest time between two refreshes for partitions that are not known


class TopicDirectory:
    """Knows the topics that are in use. Called on one event loop, with the producer in use at the time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._used_at: dict[str, float] = {}
        self._missing_until: dict[str, float] = {}  # in the order of these times
        self._refreshing = asyncio.Lock()
        self._refreshed_at = float("-inf")

    async def partitions(self, producer: FailoverProducer, topic: str) -> set[int]:
        """The partitions of a topic. Asks the broker for a new one, which may create it.

        Raises:
            UnknownTopicOrPartitionError: the topic is missing, or too many others are in use.
            KafkaConnectionError: no broker answers.
        """
        self._use(producer, topic)
        try:
            async with asyncio.timeout(_CREATION_S):
                return set(await producer.partitions_for(topic))
        except (UnknownTopicOrPartitionError, TimeoutError) as error:
            if not await producer.client.force_metadata_update() or topic in producer.client.cluster.topics():
                raise KafkaConnectionError(f"No broker could be asked for {topic}") from error
            self._forget(producer, topic)
            self._missing_until[topic] = self._clock() + _MISSING_S
            raise _missing(topic) from error
        except TopicAuthorizationFailedError:
            self._forget(producer, topic)
            raise

    async def check_partition(self, producer: FailoverProducer, topic: str, partition: int) -> None:
        """Look for a partition again if it is not known: it may have been added.

        Raises UnknownTopicOrPartitionError if there is none, and what `partitions` raises.
        """
        self._use(producer, topic)
        known = producer.client.cluster.partitions_for_topic(topic)  # without the time limit's cost
        if partition in (known or await self.partitions(producer, topic)):
            return
        await self._refresh(producer)
        if partition not in await self.partitions(producer, topic):
            raise UnknownTopicOrPartitionError(f"{topic} has no partition {partition}")

    async def _refresh(self, producer: FailoverProducer) -> None:
        """Ask for all topics in use, once for all that wait for it."""
        asked_at = self._clock()
        async with self._refreshing:
            if asked_at < self._refreshed_at:
                return
            await asyncio.sleep(self._refreshed_at + _REFRESH_S - asked_at)
            self._refreshed_at = self._clock()
            if not await producer.client.force_metadata_update():
                raise KafkaConnectionError("No broker could be asked for partitions")

    def _use(self, producer: FailoverProducer, topic: str) -> None:
        now = self._clock()
        if topic not in self._used_at:
            if self._missing_until.get(topic, now) > now:
                raise _missing(topic)
            self._make_room(producer, now)
        self._used_at[topic] = now

    def _make_room(self, producer: FailoverProducer, now: float) -> None:
        while self._missing_until and (
            len(self._missing_until) > _MAX_MISSING or next(iter(self._missing_until.values())) <= now
        ):
            del self._missing_until[next(iter(self._missing_until))]
        if len(self._used_at) < MAX_TOPICS:
            return
        for idle in [topic for topic, used_at in self._used_at.items() if now - used_at > _IDLE_S]:
            self._forget(producer, idle)
        if len(self._used_at) >= MAX_TOPICS:
            raise UnknownTopicOrPartitionError(f"{MAX_TOPICS:,} other topics are in use")

    def _forget(self, producer: FailoverProducer, topic: str) -> None:
        self._used_at.pop(topic, None)
        producer.client.forget(topic)


def _missing(topic: str) -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError(f"{topic} does not exist")
