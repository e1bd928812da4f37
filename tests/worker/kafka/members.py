"""A consumer of aiokafka and an owner of its partitions, as far as the worker's consumer goes."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition

from penstock.worker.kafka.progress.offsets import PartitionProgress, Source
from penstock.worker.kafka.progress.owner_marker import OwnerMarker

A, B = TopicPartition("requests", 0), TopicPartition("requests", 1)


class Member:
    """aiokafka's consumer. `fetched`: what the next poll returns, or raises for a partition."""

    def __init__(self) -> None:
        self.client = self
        self.ids = {"requests": b"0123456789abcdef"}  # that the broker knows
        self.paused: set[TopicPartition] = set()
        self.positions: dict[TopicPartition, int] = {}
        self.all_resumed = asyncio.Event()
        self.fetched: dict[TopicPartition, list[Any] | Exception] = {}
        self.num_rejoins = 0

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

    def subscribe(self, topics: list[str], listener: Any) -> None:
        self.listener = listener

    async def fetch_committed(self, sources: set[TopicPartition]) -> dict[TopicPartition, tuple[int, str]]:
        return dict.fromkeys(sources, (7, ""))

    async def getmany(self, *sources: TopicPartition, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        found = {source: self.fetched[source] for source in sources or self.fetched if source in self.fetched}
        for result in found.values():
            if isinstance(result, Exception):
                raise result
        return {source: self.fetched.pop(source) for source in found}  # type: ignore[misc]  # none is an exception

    def rejoin_if_stuck(self) -> None:
        self.num_rejoins += 1

    async def stop(self) -> None: ...


class Owner:
    """Gets one partition at once, and the other when it is free."""

    def __init__(self) -> None:
        self.is_free = asyncio.Event()
        self.acquired_sources: list[set[Source]] = []
        self.skipped_offsets: list[tuple[Source, int, int]] = []
        self.released: list[set[Source]] = []

    async def acquire(self, sources: set[Source]) -> set[Source]:
        if A in sources:
            return {(A.topic, A.partition)}
        await self.is_free.wait()
        return sources

    def acquired(self, sources: set[Source], committed: Mapping[Source, PartitionProgress]) -> None:
        self.acquired_sources.append(sources)

    def own_mark(self, source: Source, found: OwnerMarker) -> OwnerMarker | None:
        return None

    def skipped(self, source: Source, first: int, end: int) -> None:
        self.skipped_offsets.append((source, first, end))

    async def release(self, sources: set[Source]) -> None:
        self.released.append(sources)
