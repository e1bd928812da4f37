"""Watches what the group has committed during a run, beside how far the answers had come at that moment."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # without saying so

from penstock.ops.chaos.asked import Partition

_EVERY_S, _PATIENCE_S = 1.0, 10.0
_OPTIONS = {"log_level": 0, "socket.timeout.ms": 10_000}

log = structlog.get_logger("penstock.chaos")


@dataclass(frozen=True, slots=True)
class Look:
    """One look. `ends` were asked after `committed`: what was acknowledged before the commit lies below them."""

    committed: Mapping[Partition, int]
    ends: Mapping[Partition, int]  # of the topics of replies and dead letters


class CommitWatch:
    """Looks once a second. A look that a broker's outage prevents is left out."""

    def __init__(self, servers: str, group: str, topics: Sequence[str]) -> None:
        """`topics`: of replies and dead letters, which exist before the first look."""
        self.looks: list[Look] = []
        self._group = group
        self._topics = topics
        self._admin = AdminClient({"bootstrap.servers": servers, **_OPTIONS})

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                self.looks.append(await asyncio.to_thread(self._look))
            except KafkaException as error:
                log.debug("look_failed", error=repr(error))

    def committed_and_ends(self, topics: Sequence[str]) -> tuple[dict[Partition, int], dict[Partition, int]]:
        """Offsets that the group has committed, and then the ends of all partitions of these topics. Blocks."""
        group = ConsumerGroupTopicPartitions(self._group)
        (asked,) = self._admin.list_consumer_group_offsets([group], request_timeout=_PATIENCE_S).values()
        committed = {
            (one.topic, one.partition): one.offset for one in asked.result().topic_partitions if one.offset >= 0
        }
        return committed, self._ends(topics)

    def _look(self) -> Look:
        return Look(*self.committed_and_ends(self._topics))

    def _ends(self, topics: Iterable[str]) -> dict[Partition, int]:
        known = self._admin.list_topics(timeout=_PATIENCE_S).topics
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        wanted: dict[Any, Any] = {
            TopicPartition(topic, number): latest
            for topic in topics
            if topic in known
            for number in known[topic].partitions
        }
        found = self._admin.list_offsets(wanted, request_timeout=_PATIENCE_S)
        return {(one.topic, one.partition): answer.result().offset for one, answer in found.items()}
