"""The faults of the chaos suite. Each is injected and undone by one method, and recorded with its times."""

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException

from penstock.ops.chaos.access import Privilege, allow, revoke
from penstock.ops.chaos.faulty_engine import HANG
from penstock.ops.chaos.faulty_member import CLOCK
from penstock.ops.chaos.traffic import REPLIES
from penstock.ops.chaos.worker_command import WorkerCommand
from penstock.ops.kafka import BrokerCluster
from penstock.producer.wire.topics import dead_letter_topic

COPIED = "chaos-copy"  # header of replies that a fault has written again
_STORM_JOINS, _NUM_COPIES = 4, 200


@dataclass(frozen=True, slots=True)
class Injected:
    """One fault as it happened. Times of day, in seconds."""

    kind: str
    started: float
    ended: float
    error: str = ""  # why it could not be injected


class Faults:
    """Injects one fault at a time into a cluster and a worker."""

    def __init__(
        self,
        cluster: BrokerCluster,
        worker: WorkerCommand,
        folder: Path,
        privileges: Sequence[Privilege],
        outage_s: float,
    ) -> None:
        """`privileges`: those of the worker. `outage_s`: how long brokers and the like are away."""
        self.injected: list[Injected] = []
        self._cluster = cluster
        self._worker = worker
        self._folder = folder
        self._privileges = privileges
        self._topics = [name for kind, operation, name in privileges if (kind, operation) == ("TOPIC", "READ")]
        (self._group,) = [name for kind, _, name in privileges if kind == "GROUP"]
        self._outage_s = outage_s

    async def inject(self, kind: str, rng: random.Random) -> None:
        """Inject and undo one of `KINDS`. Failure to do so is recorded, not raised."""
        started, error = time.time(), ""
        try:
            await getattr(self, f"_{kind}")(rng)
        except (KafkaError, KafkaException, OSError, sqlite3.Error) as failure:
            error = repr(failure)
        self.injected.append(Injected(kind, started, time.time(), error))

    async def _member_killed(self, rng: random.Random) -> None:
        self._kill_one(rng, signal.SIGKILL)

    async def _member_suspended(self, rng: random.Random) -> None:
        """Longer than the session: Kafka gives its partitions away, and the member wakes up as a zombie."""
        pid = self._kill_one(rng, signal.SIGSTOP)
        await asyncio.sleep(self._outage_s)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    async def _supervisor_killed(self, rng: random.Random) -> None:
        self._worker.signal(signal.SIGKILL)

    async def _rolled(self, rng: random.Random) -> None:
        num_rolls = len(self._worker.events("roll_finished"))
        self._worker.signal(signal.SIGHUP)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(60):
                while len(self._worker.events("roll_finished")) == num_rolls:  # noqa: ASYNC110 — a log has no event to wait for
                    await asyncio.sleep(0.5)

    async def _broker_killed(self, rng: random.Random) -> None:
        node = rng.choice(self._cluster.nodes)
        await asyncio.to_thread(node.kill)
        await asyncio.sleep(self._outage_s / 2)
        await asyncio.to_thread(node.start)

    async def _broker_restarted(self, rng: random.Random) -> None:
        node = rng.choice(self._cluster.nodes)
        await asyncio.to_thread(node.stop)
        await asyncio.to_thread(node.start)

    async def _broker_suspended(self, rng: random.Random) -> None:
        node = rng.choice(self._cluster.nodes)
        node.suspend()
        try:
            await asyncio.sleep(self._outage_s)
        finally:
            node.resume()

    async def _no_leader(self, rng: random.Random) -> None:
        """Two of three brokers away: some partitions have no leader, the others too few replicas to take a record."""
        away = rng.sample(self._cluster.nodes, 2)
        for node in away:
            await asyncio.to_thread(node.kill)
        await asyncio.sleep(self._outage_s)
        await asyncio.to_thread(self._cluster.start)

    async def _rebalance_storm(self, rng: random.Random) -> None:
        """A stranger joins the group, takes partitions, answers nothing and leaves, several times."""
        for _ in range(_STORM_JOINS):
            stranger = AIOKafkaConsumer(
                *self._topics,
                bootstrap_servers=self._cluster.bootstrap_servers,
                group_id=self._group,
                partition_assignment_strategy=(RoundRobinPartitionAssignor,),
                enable_auto_commit=False,
            )
            try:
                async with asyncio.timeout(30):
                    await stranger.start()
                    await asyncio.sleep(rng.uniform(0.2, 1.5))
            except TimeoutError:
                pass
            finally:
                await stranger.stop()

    async def _partitions_added(self, rng: random.Random) -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=self._cluster.bootstrap_servers)
        await admin.start()
        try:
            topic = rng.choice(self._topics)
            (found,) = await admin.describe_topics([topic])
            await admin.create_partitions({topic: NewPartitions(len(found["partitions"]) + 1)})
        finally:
            await admin.close()

    async def _access_revoked(self, rng: random.Random) -> None:
        """The worker may not read, or write its dead letters. Without its reply topics it would answer by letters."""
        choices = [one for one in self._privileges if one[1] == "READ" or one[2].endswith(dead_letter_topic(""))]
        privilege = rng.choice([one for one in choices if one[1] != "CREATE"])
        servers = self._cluster.bootstrap_servers
        await asyncio.to_thread(revoke, servers, privilege)
        await asyncio.sleep(self._outage_s / 2)
        await asyncio.to_thread(allow, servers, [privilege])

    async def _engine_hung(self, rng: random.Random) -> None:
        """The next batch of some member never ends; the member notices it and leaves its work to others."""
        (self._folder / HANG).touch()
        await asyncio.sleep(self._outage_s)
        (self._folder / HANG).unlink(missing_ok=True)

    async def _clock_stepped(self, rng: random.Random) -> None:
        path = self._folder / CLOCK
        for offset_s in (rng.uniform(1, 20), -rng.uniform(1, 20), 0):
            path.write_text(f"{offset_s}")
            await asyncio.sleep(2)

    async def _disk_full(self, rng: random.Random) -> None:
        """No file of a member grows: writes to the response cache fail."""
        self._worker.limit_files(16_384)
        await asyncio.sleep(self._outage_s / 2)
        self._worker.limit_files(-1)

    async def _cache_locked(self, rng: random.Random) -> None:
        """Another program holds the cache's file."""
        await asyncio.to_thread(_hold_lock, self._folder / "cache.sqlite", self._outage_s / 2)

    async def _cache_damaged(self, rng: random.Random) -> None:
        path = self._folder / "cache.sqlite"
        if path.exists():
            with path.open("r+b") as file:
                for _ in range(8):
                    file.seek(rng.randrange(max(1, path.stat().st_size)))
                    file.write(rng.randbytes(64))

    async def _replies_copied(self, rng: random.Random) -> None:
        """The latest replies come again, in another order."""
        consumer = AIOKafkaConsumer(bootstrap_servers=self._cluster.bootstrap_servers)
        producer = AIOKafkaProducer(bootstrap_servers=self._cluster.bootstrap_servers, acks="all")
        try:
            await consumer.start()
            await producer.start()
            sources = [TopicPartition(REPLIES, n) for n in await _partitions_of(consumer, REPLIES)]
            ends = await consumer.end_offsets(sources)
            consumer.assign(sources)
            for source, end in ends.items():
                consumer.seek(source, max(0, end - _NUM_COPIES // len(sources)))
            batches = await consumer.getmany(timeout_ms=2000, max_records=_NUM_COPIES)
            records = [record for batch in batches.values() for record in batch]
            rng.shuffle(records)
            for record in records:
                headers = [*record.headers, (COPIED, b"1")]
                await producer.send(REPLIES, record.value, record.key, partition=record.partition, headers=headers)
        finally:
            await producer.stop()
            await consumer.stop()

    def _kill_one(self, rng: random.Random, number: signal.Signals) -> int | None:
        members = self._worker.members
        if not members:
            return None
        pid = rng.choice(members)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return pid


async def _partitions_of(consumer: AIOKafkaConsumer, topic: str) -> Sequence[int]:
    """Partitions of a topic to which the consumer need not be subscribed."""
    await consumer._client.add_topic(topic)  # aiokafka has no public way to ask for another topic
    return sorted(consumer.partitions_for_topic(topic) or ())


def _hold_lock(path: Path, seconds: float) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        time.sleep(seconds)
        db.execute("ROLLBACK")


KINDS = (
    "member_killed",
    "broker_killed",
    "rebalance_storm",
    "supervisor_killed",
    "broker_suspended",
    "engine_hung",
    "rolled",
    "no_leader",
    "member_suspended",
    "broker_restarted",
    "partitions_added",
    "disk_full",
    "cache_locked",
    "cache_damaged",
    "clock_stepped",
    "replies_copied",
    "access_revoked",
)
