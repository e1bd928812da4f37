"""Reply partitions whose leaders cannot be reached: no transaction is begun with them, as it might not end.

Kafka ends a transaction when each of its partitions has a marker. One without a leader gets none, so that the
transactional id stays unusable until the leader is back, and with it the input partition.
"""

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

import structlog
from aiokafka import AIOKafkaClient, TopicPartition

from penstock.worker.kafka.partition_names import name

# After this time other answers wait no longer. A failover takes about 10 s, of which 9 are the broker's session.
STALL_S = 30.0
_LOOK_S = 0.5  # between two looks at a partition that has no leader
_CONNECT_S = 5.0

log = structlog.get_logger("penstock.transactions")


class LeaderMissing(Exception):
    """A partition of a reply topic has no leader, or one that cannot be reached."""


class _Missing(NamedTuple):
    since: float
    looked_at: float


class ReplyLeaders:
    """Knows for how long leaders have been missing. Called on one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._missing: dict[TopicPartition, _Missing] = {}

    async def missing_s(self, client: AIOKafkaClient, topic: str, partition: int) -> float | None:
        """Seconds for which a partition's leader has been missing; None if it is there."""
        source = TopicPartition(topic, partition)
        missing = self._missing.get(source)
        if missing is None or self._clock() - missing.looked_at >= _LOOK_S:
            await self._look(client, source)
            missing = self._missing.get(source)
        return None if missing is None else self._clock() - missing.since

    async def _look(self, client: AIOKafkaClient, source: TopicPartition) -> None:
        is_there = await _is_there(client, source)
        is_outage = False
        if not is_there:
            is_outage = not await is_answering(client)
            is_there = await _is_there(client, source)  # with the leaders that are known by now
        now, missing = self._clock(), self._missing.get(source)
        if not is_there:
            since = now if missing is None or is_outage else missing.since  # after an outage all get time to come back
            self._missing[source] = _Missing(since, now)
            if missing is None:
                log.warning("reply_partition_unreachable", partition=name(source), refused_after_s=STALL_S)
        elif missing is not None:
            del self._missing[source]
            log.info("reply_partition_back", partition=name(source))


async def is_answering(client: AIOKafkaClient) -> bool:
    """Whether any broker answers."""
    try:
        async with asyncio.timeout(_CONNECT_S):
            return bool(await client.force_metadata_update())
    except TimeoutError:
        return False


async def _is_there(client: AIOKafkaClient, source: TopicPartition) -> bool:
    leader = client.cluster.leader_for_partition(source)
    if leader in (None, -1):
        return False
    try:
        async with asyncio.timeout(_CONNECT_S):
            return bool(await client.ready(leader))
    except TimeoutError:
        return False
