"""The progress that the last owners of partitions have committed."""

import asyncio
from collections.abc import Callable

import structlog
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from penstock.producer.aiokafka_internals.group_consumer import GroupConsumer
from penstock.worker.kafka.kafka_record import NO_TOPIC_ID
from penstock.worker.kafka.partition_names import name
from penstock.worker.kafka.progress import commit_metadata
from penstock.worker.kafka.progress.end_offsets import known_ends
from penstock.worker.kafka.progress.offsets import PartitionProgress, Source
from penstock.worker.kafka.progress.owner_marker import OwnerMarker

_RETRY_S = 1.0
_NO_COMMIT = 0, ""

log = structlog.get_logger("penstock.consumer")


async def read_committed(
    consumer: GroupConsumer, sources: set[TopicPartition], topic_id: Callable[[str], bytes]
) -> dict[TopicPartition, PartitionProgress]:
    """Committed progress of each of these partitions. Waits for a broker or a permission that is away.

    A partition begins at 0 without a commit, or if the commit is of a topic that was deleted. `topic_id`: the present
    ids of topics.
    """
    while True:
        try:
            found = await consumer.fetch_committed(sources)
            break
        except KafkaError as error:
            log.warning("committed_unreadable", error=repr(error), retry_s=_RETRY_S)
            await asyncio.sleep(_RETRY_S)
    return {source: _decode(source, topic_id(source.topic), *found.get(source, _NO_COMMIT)) for source in sources}


async def take_over(
    consumer: GroupConsumer,
    sources: set[TopicPartition],
    topic_id: Callable[[str], bytes],
    own_mark: Callable[[Source, OwnerMarker], OwnerMarker | None],
) -> dict[TopicPartition, PartitionProgress]:
    """Committed progress of these partitions, which were assigned, with the marks of owners that died taken over.

    topic_id: see `read_committed`. own_mark: see `PartitionOwner`.
    """
    committed = await read_committed(consumer, sources, topic_id)
    # An end only bounds the redelivered records. A partition without a leader has none, and must not hold up others.
    ends = await known_ends(consumer, [source for source, one in committed.items() if one.marker is not None])
    return {source: _taken_over(source, one, ends.get(source), own_mark) for source, one in committed.items()}


def _decode(source: TopicPartition, topic_id: bytes, offset: int, metadata: str | None) -> PartitionProgress:
    beyond, mark, marker = (metadata or "").partition(";")
    try:
        id_then, finished = commit_metadata.decode(offset, beyond)
        progress = PartitionProgress(offset, finished, OwnerMarker.parse(mark + marker) if mark else None, topic_id)
    except ValueError as error:
        log.warning("commit_metadata_ignored", partition=name(source), offset=offset, reason=str(error))
        return PartitionProgress(offset, topic_id=topic_id)
    if id_then not in (topic_id, NO_TOPIC_ID):
        log.warning("commit_of_deleted_topic", partition=name(source), offset=offset)
        return PartitionProgress(0, topic_id=topic_id)
    if progress.beyond:
        log.info("answered_by_last_owner", partition=name(source), offset=offset, records=len(progress.beyond))
    return progress


def _taken_over(
    source: TopicPartition,
    progress: PartitionProgress,
    end: int | None,
    own_mark: Callable[[Source, OwnerMarker], OwnerMarker | None],
) -> PartitionProgress:
    if progress.marker is None:
        return progress
    if (own := own_mark(source, progress.marker)) is not None:
        return progress._replace(marker=own)
    # While its first unfinished record took long, the owner has read on, and had as many in memory behind the last one.
    marker = progress.marker.taken_over(max(progress.beyond, default=progress.offset), end)
    redelivered = max(0, marker.until - progress.offset - len(progress.beyond))
    if redelivered:
        log.warning(
            "owner_died", partition=name(source), offset=progress.offset, records=redelivered, deaths=marker.deaths
        )
    return progress._replace(marker=marker)
