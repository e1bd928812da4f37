"""Faults of topics and of the group: privileges, partitions, strangers and copies."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from confluent_kafka import KafkaException

from penstock.ops.chaos.faults.access import Privilege, allow, has, revoke
from penstock.ops.chaos.faults.evidence import comes_true
from penstock.ops.chaos.faults.not_injected import Effect, NotInjectedError
from penstock.ops.chaos.load.calls import REPLIES
from penstock.ops.chaos.load.raw_load import RAW_REPLIES
from penstock.producer.wire.topics import dead_letter_topic

COPIED = "chaos-copy"  # header of replies that a fault has written again
_STORM_JOINS, _NUM_COPIES = 4, 200
_RESTORE_S = 180.0  # a privilege is granted again, though brokers may be away
_SEEN_S = 30.0  # a change of a topic or of the group has come to be known
_COPY_S = 20.0
_LOOK_S = 0.2


class TopicFaults:
    """Each method injects and undoes one fault, and returns what it did.

    It raises NotInjectedError or an error of Kafka if the fault did not happen.
    """

    def __init__(
        self, servers: str, privileges: Sequence[Privilege], seconds: float, num_assignments: Callable[[], int]
    ) -> None:
        """`privileges`: those of the worker. `seconds`: how long one of them is missing.

        `num_assignments`: how often members of the worker were assigned partitions so far.
        """
        self._servers = servers
        self._privileges = privileges
        self._topics = [name for kind, operation, name in privileges if (kind, operation) == ("TOPIC", "READ")]
        (self._group,) = [name for kind, _, name in privileges if kind == "GROUP"]
        self._seconds = seconds
        self._num_assignments = num_assignments

    async def rebalance_storm(self, rng: random.Random) -> Effect:
        """A stranger joins the group, takes partitions, answers nothing and leaves, several times."""
        num_joined, num_taken, before = 0, 0, self._num_assignments()
        for _ in range(_STORM_JOINS):
            stranger = AIOKafkaConsumer(
                *self._topics,
                bootstrap_servers=self._servers,
                group_id=self._group,
                partition_assignment_strategy=(RoundRobinPartitionAssignor,),
                enable_auto_commit=False,
            )
            try:
                async with asyncio.timeout(30):
                    await stranger.start()
                    num_joined += 1
                    await asyncio.sleep(rng.uniform(0.2, 1.5))
                    num_taken += len(stranger.assignment())
            except TimeoutError:
                pass
            finally:
                await stranger.stop()
        if not await comes_true(lambda: self._num_assignments() > before, _SEEN_S, look_s=0.5):
            raise NotInjectedError(f"The group did not rebalance after {num_joined} strangers.")
        rebalances = self._num_assignments() - before
        return {"strangers": num_joined, "partitions_taken": num_taken, "assignments_of_members": rebalances}

    async def partitions_added(self, rng: random.Random) -> Effect:
        """A request topic gets one more partition."""
        admin = AIOKafkaAdminClient(bootstrap_servers=self._servers)
        await admin.start()
        try:
            topic = rng.choice(self._topics)
            before = await _num_partitions(admin, topic)
            await admin.create_partitions({topic: NewPartitions(before + 1)})
            until = time.monotonic() + _SEEN_S
            while (after := await _num_partitions(admin, topic)) == before:
                if time.monotonic() > until:
                    raise NotInjectedError(f"{topic} still has {before} partitions.")
                await asyncio.sleep(_LOOK_S)
            return {"topic": topic, "partitions": after}
        finally:
            await admin.close()

    async def access_revoked(self, rng: random.Random) -> Effect:
        """The worker may not use its group, read a topic, or write its dead letters."""
        letters = dead_letter_topic("")
        choices = [
            (kind, operation, name)
            for kind, operation, name in self._privileges
            if operation == "READ" or (operation == "WRITE" and name.endswith(letters))
        ]
        return await self._without(rng.choice(choices))

    async def replies_refused(self, rng: random.Random) -> Effect:
        """The worker may not write the plain producers' reply topic: dead letters stand for the replies."""
        return await self._without(("TOPIC", "WRITE", RAW_REPLIES))

    async def replies_copied(self, rng: random.Random) -> Effect:
        """The latest replies come again, in another order."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self._servers)
        producer = AIOKafkaProducer(bootstrap_servers=self._servers, acks="all")
        try:
            await consumer.start()
            await producer.start()
            records = await _latest(consumer, REPLIES)
            if not records:
                raise NotInjectedError("There was no reply to copy.")
            rng.shuffle(records)
            for record in records:
                headers = [*record.headers, (COPIED, b"1")]
                await producer.send_and_wait(
                    REPLIES, record.value, record.key, partition=record.partition, headers=headers
                )
            return {"copies": len(records)}
        finally:
            await producer.stop()
            await consumer.stop()

    async def _without(self, privilege: Privilege) -> Effect:
        """Take a privilege away, and grant it again in any case. Brokers may be away meanwhile by another fault."""
        began = time.monotonic()
        try:
            await self._persist(lambda: revoke(self._servers, privilege))
            if not await self._becomes(privilege, is_there=False):
                raise NotInjectedError(f"The worker still has {' '.join(privilege)}.")
            revoked = time.monotonic()
            await asyncio.sleep(self._seconds)
        finally:
            await self._persist(lambda: allow(self._servers, [privilege]))
        if not await self._becomes(privilege, is_there=True):
            raise RuntimeError(f"{' '.join(privilege)} could not be granted again.")  # the rest of the run is void
        times = {"took_s": round(revoked - began, 1), "missing_s": round(time.monotonic() - revoked, 1)}
        return {"privilege": " ".join(privilege), **times}

    async def _becomes(self, privilege: Privilege, *, is_there: bool) -> bool:
        """Whether brokers come to know of a change."""
        until = time.monotonic() + _SEEN_S
        while time.monotonic() < until:
            with contextlib.suppress(KafkaException, TimeoutError):
                if await asyncio.to_thread(has, self._servers, privilege) == is_there:
                    return True
            await asyncio.sleep(_LOOK_S)
        return False

    async def _persist(self, change: Callable[[], None]) -> None:
        until = time.monotonic() + _RESTORE_S
        while True:
            try:
                return await asyncio.to_thread(change)
            except (KafkaException, TimeoutError):
                if time.monotonic() > until:
                    raise


async def _num_partitions(admin: AIOKafkaAdminClient, topic: str) -> int:
    (found,) = await admin.describe_topics([topic])
    return len(found["partitions"])


async def _latest(consumer: AIOKafkaConsumer, topic: str) -> list[Any]:
    """The latest records of a topic, some of each partition."""
    await consumer._client.add_topic(topic)  # aiokafka has no public way to ask for another topic
    sources = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
    ends = await consumer.end_offsets(sources)
    consumer.assign(sources)
    starts = {source: max(0, end - _NUM_COPIES // len(sources)) for source, end in ends.items()}
    for source, start in starts.items():
        consumer.seek(source, start)
    records: list[Any] = []
    num_wanted, until = sum(ends.values()) - sum(starts.values()), time.monotonic() + _COPY_S
    while time.monotonic() < until and len(records) < num_wanted:
        batches = await consumer.getmany(timeout_ms=1000, max_records=num_wanted - len(records))
        records += [record for batch in batches.values() for record in batch]
    return records
