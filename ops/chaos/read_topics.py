"""Reads whole topics, as anybody may who has only an address."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer

from penstock.ops.chaos.commit_watch import end_offsets

_POLL_MS, _MOST_RECORDS = 1000, 5000


async def read_topics(servers: str, topics: Sequence[str]) -> AsyncIterator[Any]:
    """Every record of these topics, each partition in its order, up to the ends at the time of the call."""
    async with AIOKafkaConsumer(
        bootstrap_servers=servers, auto_offset_reset="earliest", max_partition_fetch_bytes=8 << 20
    ) as consumer:
        ends = {source: end for source, end in (await end_offsets(consumer, topics)).items() if end}
        consumer.assign(list(ends))
        while ends:
            for source, records in (await consumer.getmany(timeout_ms=_POLL_MS, max_records=_MOST_RECORDS)).items():
                for record in records:
                    yield record
                if source in ends and records[-1].offset + 1 >= ends[source]:
                    del ends[source]
                    consumer.pause(source)
