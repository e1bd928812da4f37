"""Offsets that no worker of the group has read, and none will: Kafka has deleted their records."""

from collections.abc import Iterable
from typing import Literal, get_args

import structlog
from aiokafka import TopicPartition

from penstock.worker.kafka.partition_names import name

# Deleted by retention or by a request; so before the first commit of the group; with their topic, which was recreated.
Cause = Literal["deleted", "no_commit", "recreated"]

log = structlog.get_logger("penstock.consumer")


class SkippedOffsets:
    """Logs and counts them. Offsets without a record, as those of transaction markers, are not among them."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.counts: dict[tuple[str, ...], int] = {(topic, cause): 0 for topic in topics for cause in get_args(Cause)}

    def note(self, source: TopicPartition, first: int, end: int, cause: Cause) -> None:
        """The offsets from `first` up to `end`, which is read or does not exist. None if `end` is not beyond."""
        if first >= end:
            return
        self.counts[source.topic, cause] += end - first
        log.warning("offsets_skipped", partition=name(source), cause=cause, first=first, last=end - 1, num=end - first)
