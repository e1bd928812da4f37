"""The ends of partitions: the offsets after their last records."""

import asyncio
import contextlib
from collections.abc import Collection

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

_RETRY_S = 1.0
_SOON_S = 3.0

log = structlog.get_logger("penstock.consumer")


async def read_ends(consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
    """The present ends of the assigned partitions. Waits for a broker."""
    while True:
        try:
            return dict(await consumer.end_offsets(list(consumer.assignment())))
        except KafkaError as error:
            log.warning("end_offsets_failed", error=repr(error), retry_s=_RETRY_S)
            await asyncio.sleep(_RETRY_S)


async def known_ends(consumer: AIOKafkaConsumer, sources: Collection[TopicPartition]) -> dict[TopicPartition, int]:
    """The present ends of those of the partitions whose leaders answer soon."""

    async def ask(source: TopicPartition) -> dict[TopicPartition, int]:
        with contextlib.suppress(KafkaError, TimeoutError):
            async with asyncio.timeout(_SOON_S):
                return dict(await consumer.end_offsets([source]))
        return {}

    found = await asyncio.gather(*map(ask, sources))
    return {source: end for one in found for source, end in one.items()}


def seen_ends(consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
    """The ends of the assigned partitions as the last fetch of each saw them. Does not wait."""
    ends = {source: consumer.highwater(source) for source in consumer.assignment()}
    return {source: end for source, end in ends.items() if end is not None}


class EndOffsets:
    """The ends of the assigned partitions as they were when `refresh` last read them."""

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, int] = {}

    async def refresh(self, consumer: AIOKafkaConsumer) -> None:
        """Read the present ends if the last ones are reached. Waits for a broker."""
        if await self.are_reached(consumer):
            self._ends = await read_ends(consumer)

    async def are_reached(self, consumer: AIOKafkaConsumer) -> bool:
        """Whether the partitions that are still assigned have been handed out up to these ends."""
        try:
            mine = consumer.assignment()
            return all([await consumer.position(source) >= end for source, end in self._ends.items() if source in mine])
        except (IllegalStateError, KafkaError):
            return False  # a rebalance came in between: ask again
