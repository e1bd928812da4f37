"""Commits of progress: offsets, with what is finished beyond them and the owner's mark as metadata."""

from collections.abc import Mapping

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError, OffsetMetadataTooLargeError

from penstock.worker.kafka.progress import commit_metadata
from penstock.worker.kafka.progress.offsets import PartitionProgress, Source

log = structlog.get_logger("penstock.consumer")


class ProgressCommits:
    """Commits with metadata, or without once the broker has refused its size."""

    def __init__(self) -> None:
        self.was_overtaken = False  # whether the last commit failed because the group has gone on without this member
        self._has_metadata = True  # false if the broker takes none of the size that commits may have

    async def commit(self, consumer: AIOKafkaConsumer, offsets: Mapping[Source, PartitionProgress]) -> bool:
        """Commit progress. False when the group is rebalancing or the broker is away: try again."""
        self.was_overtaken = False
        try:
            await self._commit(consumer, offsets)
        except (CommitFailedError, IllegalStateError) as error:
            self.was_overtaken = True
            log.info("commit_overtaken_by_rebalance", error=str(error))
            return False
        except KafkaError as error:
            log.warning("commit_failed", error=repr(error))
            return False
        return True

    async def _commit(self, consumer: AIOKafkaConsumer, offsets: Mapping[Source, PartitionProgress]) -> None:
        commits = {}
        for source, progress in offsets.items():
            metadata = commit_metadata.of(progress) if self._has_metadata else ""
            commits[TopicPartition(*source)] = progress.offset, metadata
        try:
            await consumer.commit(commits)
        except OffsetMetadataTooLargeError:
            log.warning("commit_metadata_refused", consequence=commit_metadata.NO_METADATA)
            self._has_metadata = False
            await self._commit(consumer, offsets)
