"""The topic of bounds while no broker is there."""

import asyncio

import pytest
from structlog.testing import capture_logs

from penstock.producer.transport.cluster import KafkaCluster
from penstock.worker.enrichment import bounds_topic
from penstock.worker.enrichment.bounds_topic import BoundsTopic


async def test_a_read_waits_for_a_broker_also_beyond_the_time_limit_of_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds_topic, "_RETRY_S", 0.0)
    topic = BoundsTopic(KafkaCluster("127.0.0.1:9", connect_timeout_s=0.01), "out")
    with capture_logs() as logs:
        reading = asyncio.create_task(topic.read_on())
        async with asyncio.timeout(30):
            while [one["event"] for one in logs].count("chunk_bounds_unreadable") < 2 and not reading.done():
                await asyncio.wait((reading,), timeout=0.01)
        assert not reading.done()
        reading.cancel()
