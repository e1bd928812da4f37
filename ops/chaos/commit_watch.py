"""Watches what the group has committed during a run, beside how far the answers had come at that moment."""

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition

from penstock.ops.chaos.asked import Partition

_EVERY_S, _PATIENCE_S = 1.0, 10.0
_SLOW_S = 2.0  # a look that takes longer has waited for a broker
_SETTLED_S = 10.0  # the brokers' session timeout: until then a suspended leader may not know that it was replaced
# A consumer that does not subscribe is no member of its group.
_OPTIONS = {"enable.auto.commit": False, "isolation.level": "read_uncommitted", "log_level": 0}

log = structlog.get_logger("penstock.chaos")


@dataclass(frozen=True, slots=True)
class Look:
    """One look. `ends` were asked after `committed`: what was acknowledged before the commit lies below them."""

    committed: Mapping[Partition, int]
    ends: Mapping[Partition, int]  # of the topics of replies and dead letters


class CommitWatch:
    """Looks once a second. Looks that a broker's outage prevents are left out, and so are those soon after it.

    A leader that was suspended answers with the ends that it knew, although another has gone on in its place.
    """

    def __init__(self, servers: str, group: str, sources: Sequence[str], answers: Sequence[str]) -> None:
        """`sources`: topics of requests. `answers`: topics of replies and dead letters."""
        self.looks: list[Look] = []
        self._sources = sources
        self._answers = answers
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": group, **_OPTIONS})

    async def run(self) -> None:
        """Look until cancelled."""
        settled = 0.0
        while True:
            await asyncio.sleep(_EVERY_S)
            begun = time.monotonic()
            try:
                look = await asyncio.to_thread(self._look)
            except KafkaException as error:
                log.debug("look_failed", error=repr(error))
                settled = time.monotonic() + _SETTLED_S
                continue
            if time.monotonic() - begun > _SLOW_S:
                settled = time.monotonic() + _SETTLED_S
            elif begun > settled:
                self.looks.append(look)

    async def num_behind(self) -> float:
        """Requests, or rather their offsets, that are not committed. Infinite where the brokers do not answer."""
        try:
            committed, ends = await asyncio.to_thread(self.committed_and_ends)
        except KafkaException:
            return math.inf
        return sum(end - committed.get(source, 0) for source, end in ends.items())

    async def keeps_up(self, topic: str, seconds: float) -> bool:
        """Whether all that a topic has at this moment is committed so much later. False if no broker answers."""
        try:
            ends = await asyncio.to_thread(self._ends, [topic])
            await asyncio.sleep(seconds)
            committed = await asyncio.to_thread(self._committed)
        except KafkaException:
            return False
        return all(committed.get(source, 0) >= end for source, end in ends.items())

    def committed_and_ends(self) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Offsets that the group has committed, and then the ends of the partitions of requests. Blocks."""
        return self._committed(), self._ends(self._sources)

    def _look(self) -> Look:
        return Look(self._committed(), self._ends(self._answers))

    def _committed(self) -> dict[Partition, int]:
        found = self._consumer.committed(self._partitions(self._sources), _PATIENCE_S)
        return {(one.topic, one.partition): one.offset for one in found if one.offset >= 0}

    def _ends(self, topics: Sequence[str]) -> dict[Partition, int]:
        ends = {}
        for one in self._partitions(topics):
            _, ends[one.topic, one.partition] = self._consumer.get_watermark_offsets(one, _PATIENCE_S)
        return ends

    def _partitions(self, topics: Sequence[str]) -> list[TopicPartition]:
        known = self._consumer.list_topics(timeout=_PATIENCE_S).topics
        return [
            TopicPartition(topic, number) for topic in topics if topic in known for number in known[topic].partitions
        ]
