"""Sends records of a route's input topic to its topic of replays, as fast as the route's workers enrich them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from penstock.ops.cli.dead_letters.record_sender import RecordSender
from penstock.ops.cli.dead_letters.topic_reader import TopicReader
from penstock.ops.cli.replays.group_progress import GroupProgress
from penstock.ops.cli.replays.partition_replay import InputRecord, PartitionReplay
from penstock.ops.cli.terminal import say
from penstock.producer.aiokafka_internals.lenient_records import UNREADABLE
from penstock.producer.aiokafka_internals.record_batches import UNREADABLE_BATCH
from penstock.producer.wire.headers import REPLAY_RUN, REPLAY_SOURCE, REPLAY_TIME_MS, position

_LOOK_S = 0.5  # workers commit as often
_FEWEST, _MOST = 256, 8192  # records of a partition that are on their way
_STALLED_S = 10.0
_OURS = {UNREADABLE, REPLAY_SOURCE, REPLAY_TIME_MS, REPLAY_RUN}

Show = Callable[[int, int], None]  # done, total


@dataclass(frozen=True, slots=True)
class ReplayTopics:
    """Where records are read, and where they are sent."""

    source: str
    num_partitions: int
    target: str
    num_targets: int


@dataclass(slots=True)
class _Part:
    """One partition of the input topic."""

    replay: PartitionReplay
    begin: int
    end: int = 0  # of the survey: what follows is live
    cursor: int = 0  # of the next record that may be sent
    followed: int = 0  # live records before it are known
    limit: int = _FEWEST


class RouteReplay:
    """One run. The caller opens and closes what it is given."""

    def __init__(
        self,
        topics: ReplayTopics,
        reader: TopicReader,
        sender: RecordSender,
        replays: Mapping[int, PartitionReplay],
        first: int,
    ) -> None:
        """`replays`: by partition of the input topic. `first`: offset at which each begins."""
        self._topics, self._reader, self._sender = topics, reader, sender
        self._parts = {partition: _Part(replay, first) for partition, replay in replays.items()}
        self._run = b"%d" % (time.time() * 1e3)
        self._finished_at = time.monotonic()  # when the group has last finished something
        self.num_read = self.num_wanted = self.num_done = self.num_again = 0
        self.is_resumed = False  # whether `recall` has found a run

    async def recall(self) -> None:
        """Go on with the last run: learn what it has sent. Called first, or not at all."""
        copies: list[tuple[int, bytes | None, int, int]] = []
        run = 0
        for target in range(self._topics.num_targets):
            async for record in self._records(self._topics.target, target, 0, None):
                found = _copied(record)
                if found is None or found[0] < run:
                    continue
                if found[0] > run:
                    run, copies = found[0], []
                copies.append((found[1], record.key, found[2], record.offset))
        now = time.monotonic()
        for partition, key, offset, at in copies:
            if partition in self._parts:
                self._parts[partition].replay.note_sent(key, offset, at, now)
        if run:
            self._run, self.is_resumed = b"%d" % run, True

    async def survey(self, show: Show) -> None:
        """Read the topic once, up to its present ends."""
        ends = await self._reader.ends(self._topics.source, self._topics.num_partitions)
        total, before = sum([ends[partition] for partition in self._parts]), 0
        for partition, part in self._parts.items():
            part.end = part.followed = ends[partition]
            part.cursor = part.begin
            async for record in self._records(self._topics.source, partition, part.begin, part.end - 1):
                part.replay.survey(record)
                self.num_read += 1
                show(before + record.offset, total)
            before += part.end
            self.num_wanted += part.replay.count_wanted()

    async def run(self, group: GroupProgress, show: Show) -> None:
        """Send all, and wait until the group has finished it."""
        while not all(part.cursor >= part.end and part.replay.is_idle for part in self._parts.values()):
            await self._look(group)
            show(self.num_done, self.num_wanted + self.num_again)
            num_sent = sum([await self._send(partition) for partition in self._parts])
            await self._seal()
            if not num_sent:
                self._tell_if_stalled(group)
                await asyncio.sleep(_LOOK_S)

    async def _look(self, group: GroupProgress) -> None:
        """See what is finished, and which live records came: in this order, as `PartitionReplay` says."""
        committed = await group.committed(self._topics.target, self._topics.num_targets)
        ends = await self._reader.ends(self._topics.source, self._topics.num_partitions)
        for partition, part in self._parts.items():
            if ends[partition] > part.followed:
                async for record in self._records(self._topics.source, partition, part.followed, ends[partition] - 1):
                    part.replay.follow(record)
                part.followed = ends[partition]
            num_done = part.replay.finish(committed[partition % self._topics.num_targets], time.monotonic())
            if num_done:
                part.limit = min(_MOST, max(_FEWEST, 2 * num_done))
                self.num_done += num_done
                self._finished_at = time.monotonic()

    async def _send(self, partition: int) -> int:
        """Send what there is room for. Returns the number of records."""
        part = self._parts[partition]
        newer = part.replay.due(time.monotonic())
        for record in newer:
            await self._send_copy(part, record)
        self.num_again += len(newer)
        num_sent, room = len(newer), part.limit - part.replay.num_on_way
        if room <= 0 or part.cursor >= part.end:
            return num_sent
        async for record in self._records(self._topics.source, partition, part.cursor, part.end - 1):
            if room <= 0:
                break
            part.cursor = record.offset + 1
            if part.replay.is_wanted(record):
                await self._send_copy(part, record)
                num_sent += 1
                room -= 1
        else:
            part.cursor = part.end
        return num_sent

    async def _send_copy(self, part: _Part, record: InputRecord) -> None:
        if UNREADABLE_BATCH in dict(record.headers):
            self._sender.skipped["in a batch that cannot be read"] += 1
            return
        source = position(self._topics.source, record.partition, record.offset)
        headers = [header for header in record.headers if header[0] not in _OURS]
        headers += [
            (REPLAY_SOURCE, source),
            (REPLAY_TIME_MS, b"%d" % max(0, record.timestamp)),
            (REPLAY_RUN, self._run),
        ]
        part.replay.send(record)
        await self._sender.send_alike(self._topics.target, record.partition, record.key, record.value, headers)

    async def _seal(self) -> None:
        await self._sender.flush()
        ends = await self._reader.ends(self._topics.target, self._topics.num_targets)
        for partition, part in self._parts.items():
            part.replay.seal(ends[partition % self._topics.num_targets], time.monotonic())

    def _tell_if_stalled(self, group: GroupProgress) -> None:
        now = time.monotonic()
        if now - self._finished_at >= _STALLED_S:
            self._finished_at = now
            say(f"No worker of the group {group.group_id} has finished a replay for {_STALLED_S:g} s.", "yellow")

    async def _records(self, topic: str, partition: int, first: int, last: int | None) -> AsyncIterator[Any]:
        if last is not None and last < first:
            return
        async with aclosing(self._reader.records(topic, partition, first, last)) as records:
            async for record in records:
                yield record


def _copied(record: Any) -> tuple[int, int, int] | None:
    """The run of a copy, and the partition and offset of its original; None: it is none that we wrote."""
    headers = dict(record.headers)
    run, source = headers.get(REPLAY_RUN) or b"", headers.get(REPLAY_SOURCE) or b""
    found: Sequence[bytes] = source.rsplit(b"-", 2)[1:]
    if not all(part.isdigit() and len(part) < 19 for part in (run, *found)) or len(found) != 2:
        return None
    return int(run), int(found[0]), int(found[1])
