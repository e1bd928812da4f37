"""Watches what the group has committed during a run, beside how far the answers had come at that moment."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

_EVERY_S, _PATIENCE_S = 1.0, 10.0

log = structlog.get_logger("penstock.chaos")


@dataclass(frozen=True, slots=True)
class Look:
    """One look. `ends` were asked after `committed`: what was acknowledged before the commit lies below them."""

    committed: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]  # of the topics of replies and dead letters


class CommitWatch:
    """Looks once a second. A look that a broker's outage prevents is left out."""

    def __init__(self, servers: str, group: str, topics: Sequence[str]) -> None:
        """`topics`: of replies and dead letters."""
        self.looks: list[Look] = []
        self._servers = servers
        self._group = group
        self._topics = topics

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    self.looks.append(await self.look())
            except (KafkaError, OSError, AttributeError) as error:  # aiokafka's admin client has no broker's address
                log.debug("look_failed", error=repr(error))

    async def look(self) -> Look:
        """Look now."""
        committed = await committed_offsets(self._servers, self._group)
        async with connected(self._servers) as consumer:
            return Look(committed, await end_offsets(consumer, self._topics))


@contextlib.asynccontextmanager
async def connected(servers: str, **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer of no group. aiokafka's own context leaves one open whose start fails."""
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, **options)
    try:
        await consumer.start()
        yield consumer
    finally:
        await consumer.stop()


async def committed_offsets(servers: str, group: str) -> dict[TopicPartition, int]:
    """Offsets that the group has committed; partitions without one are left out."""
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        offsets = await admin.list_consumer_group_offsets(group)
    finally:
        await admin.close()
    return {source: found.offset for source, found in offsets.items() if found.offset >= 0}


async def end_offsets(consumer: AIOKafkaConsumer, topics: Sequence[str]) -> dict[TopicPartition, int]:
    """The end of each partition of these topics."""
    known = await consumer._client.fetch_all_metadata()  # aiokafka has no public way to learn of new partitions at once
    sources = [TopicPartition(topic, n) for topic in topics for n in known.partitions_for_topic(topic) or ()]
    return dict(await consumer.end_offsets(sources))
