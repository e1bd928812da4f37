"""Ends of partitions, some of which have no leader."""

import asyncio
from collections.abc import Sequence

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaTimeoutError

from penstock.worker.kafka.progress import end_offsets
from penstock.worker.kafka.progress.end_offsets import known_ends
from penstock.worker.kafka.progress.owner_marker import OwnerMarker

LED, REFUSED, SILENT = (TopicPartition("penstock.requests.tiny", number) for number in range(3))


class FakeConsumer:
    async def end_offsets(self, sources: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if SILENT in sources:
            await asyncio.Event().wait()
        if REFUSED in sources:
            raise KafkaTimeoutError
        return dict.fromkeys(sources, 7)


async def test_a_partition_without_a_leader_holds_up_the_end_of_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_offsets, "_SOON_S", 0.01)
    assert await known_ends(FakeConsumer(), [LED, REFUSED, SILENT]) == {LED: 7}


def test_without_a_known_end_all_records_that_an_owner_may_hold_are_redelivered() -> None:
    known, unknown = OwnerMarker().taken_over(5, 7), OwnerMarker().taken_over(5, None)
    assert (known.until, known.deaths, unknown.deaths) == (7, 1, 1)
    assert unknown.is_redelivered(5 + 8191)
    assert not unknown.is_redelivered(5 + 8192)
