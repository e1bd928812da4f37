"""The way back to the last record handed out, after a poll that failed."""

import asyncio
from collections.abc import Mapping

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import IllegalStateError, KafkaError

from penstock.worker.kafka.partition_names import name

_RETRY_S = 1.0

log = structlog.get_logger("penstock.consumer")


async def seek_back(consumer: AIOKafkaConsumer, next_offsets: Mapping[TopicPartition, int]) -> None:
    """Set each assigned partition's position to its next offset, else the group's. Waits for a broker that is away.

    Args:
        next_offsets: after the last record handed out since the assignment. A rebalance may clear it meanwhile.
    """
    for source in consumer.assignment():
        while source in consumer.assignment():  # a rebalance may take it meanwhile, with other positions for the rest
            try:
                offset = next_offsets.get(source)
                if offset is None:  # nothing handed out since the assignment: the group's offset, or the beginning
                    offset = await consumer.committed(source) or 0
                consumer.seek(source, offset)
                break
            except IllegalStateError:
                break  # a rebalance came in between, and with it new positions
            except KafkaError as error:
                log.warning("seek_back_failed", partition=name(source), error=repr(error), retry_s=_RETRY_S)
                await asyncio.sleep(_RETRY_S)
