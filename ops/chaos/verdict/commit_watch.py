"""How far the group has committed, for those that wait for it."""

import asyncio
import math
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from penstock.ops.bench.load.records import Partition

_PATIENCE_S = 10.0
# A consumer that does not subscribe is no member of its group.
_OPTIONS = {"enable.auto.commit": False, "isolation.level": "read_uncommitted", "log_level": 0}


class CommitWatch:
    """Asks the coordinator of the group and the leaders of the request topics."""

    def __init__(self, servers: str, group: str, sources: Sequence[str]) -> None:
        """`sources`: topics of requests."""
        self._sources = sources
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": group, **_OPTIONS})

    async def num_behind(self) -> float:
        """Requests, or rather their offsets, that are not committed.

        Infinite where the brokers do not answer, or not of all topics, or an end is below what is committed: a broker
        that has just started may not know better.
        """
        try:
            committed, ends = await asyncio.to_thread(self.committed_and_ends)
        except KafkaException:
            return math.inf
        behind = [end - committed.get(source, 0) for source, end in ends.items()]
        is_whole = {topic for topic, _ in ends} == {*self._sources} and min(behind) >= 0
        return sum(behind) if is_whole else math.inf

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
