"""Fetches online partitions before bulk ones. A broker fills its answer in the order of the request, up to a size.

aiokafka orders a request at random, so that a large backlog of bulk would fill about every second answer alone. Bulk is
not starved: while online records wait in the worker, their topic is paused.
"""

import random
from collections.abc import MutableSequence

from aiokafka import TopicPartition
from aiokafka.consumer import fetcher

from penstock.producer.wire.topics import bulk_topic

_BULK = bulk_topic("")


def install() -> None:
    """Order the requests of every aiokafka consumer in this process; aiokafka (0.14) has no public way to do so."""
    fetcher.random = _OnlineFirst


class _OnlineFirst:
    """Stands for the module `random`, of which the fetcher uses `shuffle` alone."""

    @staticmethod
    def shuffle(partitions: MutableSequence[tuple[TopicPartition, int]]) -> None:
        random.shuffle(partitions)
        partitions[:] = sorted(partitions, key=_is_bulk)


def _is_bulk(partition: tuple[TopicPartition, int]) -> bool:
    topic: str = partition[0].topic
    return topic.endswith(_BULK)
