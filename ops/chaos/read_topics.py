"""Reads whole topics, as anybody may who has only an address."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from penstock.ops.chaos.commit_watch import connected, end_offsets

_POLL_MS, _MOST_RECORDS = 1000, 5000


async def read_topics(servers: str, topics: Sequence[str], isolation: str = "read_uncommitted") -> AsyncIterator[Any]:
    """Every record of these topics, each partition in its order, up to the ends at the time of the call."""
    async with connected(
        servers,
        auto_offset_reset="earliest",
        isolation_level=isolation,
        max_partition_fetch_bytes=8 << 20,
    ) as consumer:
        ends = {source: end for source, end in (await end_offsets(consumer, topics)).items() if end}
        consumer.assign(list(ends))
        while ends:
            for records in (await consumer.getmany(timeout_ms=_POLL_MS, max_records=_MOST_RECORDS)).values():
                for record in records:
                    yield record
            for source in list(ends):  # by position: the end may be a transaction's marker, which is no record
                if await consumer.position(source) >= ends[source]:
                    del ends[source]
                    consumer.pause(source)
