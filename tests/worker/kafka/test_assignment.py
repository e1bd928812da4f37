"""Partitions are read once their owner has them, each by itself."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition

from penstock.worker.kafka.fetching import assignment as assignment_module
from penstock.worker.kafka.fetching.assignment import Assignment
from penstock.worker.kafka.progress.offsets import PartitionProgress, Source
from penstock.worker.kafka.progress.owner_marker import OwnerMarker

A, B = TopicPartition("requests", 0), TopicPartition("requests", 1)


class Member:
    """aiokafka's consumer, as far as reading goes."""

    def __init__(self) -> None:
        self.client = self
        self.ids = {"requests": b"0123456789abcdef"}  # that the broker knows
        self.paused: set[TopicPartition] = set()
        self.positions: dict[TopicPartition, int] = {}
        self.all_resumed = asyncio.Event()

    def get_random_node(self) -> int:
        return 1

    async def send(self, node: int, request: object) -> Any:
        return SimpleNamespace(topics=[(0, topic, topic_id) for topic, topic_id in self.ids.items()])

    def assignment(self) -> set[TopicPartition]:
        return {A, B}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0, 1}

    def pause(self, *sources: TopicPartition) -> None:
        self.paused |= set(sources)

    def resume(self, *sources: TopicPartition) -> None:
        self.paused -= set(sources)
        if not self.paused:
            self.all_resumed.set()

    def seek(self, source: TopicPartition, offset: int) -> None:
        self.positions[source] = offset


class Owner:
    """Gets one partition at once, and the other when it is free."""

    def __init__(self) -> None:
        self.is_free = asyncio.Event()
        self.acquired_sources: list[set[Source]] = []

    async def acquire(self, sources: set[Source]) -> set[Source]:
        if A in sources:
            return {(A.topic, A.partition)}
        await self.is_free.wait()
        return sources

    def acquired(self, sources: set[Source], committed: Mapping[Source, PartitionProgress]) -> None:
        self.acquired_sources.append(sources)

    def own_mark(self, source: Source, found: OwnerMarker) -> OwnerMarker | None:
        return None

    def skipped(self, source: Source, first: int, end: int) -> None: ...

    async def release(self, sources: set[Source]) -> None: ...


async def test_a_partition_that_its_owner_does_not_get_yet_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def take_over(
        member: Member, sources: set[TopicPartition], *_: object
    ) -> dict[TopicPartition, PartitionProgress]:
        return {source: PartitionProgress(7) for source in sources}

    monkeypatch.setattr(assignment_module, "take_over", take_over)
    assignment, owner = Assignment(["requests"], "penstock-0"), Owner()
    member: Any = Member()
    assignment.open(member, owner, {A, B})
    async with asyncio.timeout(300):
        await assignment.ready.wait()
        assert (member.paused, member.positions) == ({B}, {A: 7})
        assignment.pause(member, "requests")
        assignment.resume(member, "requests")
        assert member.paused == {B}
        owner.is_free.set()
        await member.all_resumed.wait()
    assert (member.paused, member.positions) == (set(), {A: 7, B: 7})
    assert owner.acquired_sources == [{A}, {B}]
    for source in (A, B):
        assignment.next_offsets[source] += 1
        member.positions[source] = 99  # as a poll that failed leaves it
    assignment.go_back(member)
    assert member.positions == {A: 8, B: 8}
    await assignment.close()
    assert not assignment.ready.is_set()
