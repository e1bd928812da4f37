"""The worker's consumer: what it hands out of a poll, and what it does about what Kafka says. A fake member."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CorruptRecordException, GroupAuthorizationFailedError
from structlog.testing import capture_logs

from penstock.producer.transport.cluster import KafkaRefused
from penstock.worker.kafka.fetching import consumer as consumer_module
from penstock.worker.kafka.fetching.consumer import Consumer
from penstock.worker.kafka.fetching.group_member import GroupMember
from tests.worker.kafka.members import A, B, Member, Owner


class Bench:
    """A consumer that has started, the fake of aiokafka's, and what the worker was given."""

    def __init__(self) -> None:
        self.member: Any = Member()
        self.owner = Owner()
        self.owner.is_free.set()
        self.received: list[tuple[list[int], bytes]] = []
        self.revoked: list[tuple[set[TopicPartition], set[TopicPartition]]] = []  # with what was paused then
        member = GroupMember("group", 0, "revision", 100, 1.0)
        cluster: Any = None
        self.consumer = Consumer(cluster, {"requests": False}, member, received=self._receive, revoked=self._revoke)
        self.consumer.serve(self.owner)

    def _receive(self, records: Sequence[Any], topic_id: bytes) -> None:
        self.received.append(([record.offset for record in records], topic_id))

    async def _revoke(self, sources: set[TopicPartition]) -> None:
        self.revoked.append((sources, set(self.member.paused)))

    async def assign(self) -> None:
        await self.member.listener.on_partitions_assigned({A, B})
        await self.member.all_resumed.wait()


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()

    async def connect(_cluster: object, make: Any) -> Member:
        return make()  # type: ignore[no-any-return]  # `make_member`

    def make_member(_cluster: object, _member: object, _ids: object, jumped: Any) -> Member:
        made.member.jumped = jumped
        return made.member  # type: ignore[no-any-return]  # it is Any

    monkeypatch.setattr(consumer_module, "connect", connect)
    monkeypatch.setattr(consumer_module, "make_member", make_member)
    monkeypatch.setattr(consumer_module, "_RETRY_S", 0.0)
    await made.consumer.start()
    return made


def records(*offsets: int) -> list[Any]:
    return [SimpleNamespace(offset=offset) for offset in offsets]


async def test_what_a_poll_brings_is_handed_out_by_partition(bench: Bench) -> None:
    await bench.assign()
    bench.member.fetched = {A: records(7, 8), B: records(9)}
    await bench.consumer.poll(0)
    topic_id = bench.member.ids["requests"]
    assert bench.received == [([7, 8], topic_id), ([9], topic_id)]
    await bench.consumer.stop(1.0)


async def test_a_partition_that_cannot_be_read_stops_no_other_and_loses_no_record(bench: Bench) -> None:
    await bench.assign()
    bench.member.fetched = {A: CorruptRecordException(), B: records(7)}
    bench.member.positions = {A: 99, B: 99}  # as a poll that fails leaves them
    with capture_logs() as logs:
        await bench.consumer.poll(0)
    assert bench.member.positions == {A: 7, B: 7}
    assert [offsets for offsets, _ in bench.received] == [[7]]
    assert [entry["event"] for entry in logs] == ["poll_failed", "partition_unreadable"]
    assert bench.member.num_rejoins == 1
    await bench.consumer.stop(1.0)


async def test_a_denied_group_ends_a_worker_that_has_not_joined_and_no_other(bench: Bench) -> None:
    bench.member.fetched = {A: GroupAuthorizationFailedError("group")}
    with pytest.raises(KafkaRefused, match="It needs the ACL READ on it"):
        await bench.consumer.poll(0)
    await bench.assign()
    await bench.consumer.poll(0)
    await bench.consumer.stop(1.0)


@pytest.mark.parametrize(("asked", "begins", "cause"), [(7, 9, "deleted"), (0, 5, "no_commit"), (7, 3, None)])
async def test_offsets_that_kafka_has_deleted_are_counted_by_their_cause(
    bench: Bench, asked: int, begins: int, cause: str | None
) -> None:
    with capture_logs() as logs:
        bench.member.jumped(A, asked, begins)  # it is not assigned
        assert logs == []
        await bench.assign()
        logs.clear()
        bench.member.jumped(A, asked, begins)
    expected = dict.fromkeys([("requests", one) for one in ("deleted", "no_commit", "recreated")], 0)
    assert bench.consumer.num_skipped == expected | ({("requests", cause): begins - asked} if cause else {})
    assert bench.owner.skipped_offsets == ([(A, asked, begins)] if cause else [])
    assert [entry["event"] for entry in logs] == ["offsets_skipped" if cause else "log_truncated"]
    bench.member.fetched = {A: CorruptRecordException()}
    await bench.consumer.poll(0)
    assert bench.member.positions[A] == begins  # it is read from there, also after a failure
    await bench.consumer.stop(1.0)


async def test_what_is_revoked_is_paused_and_finished_before_the_owner_lets_it_go(bench: Bench) -> None:
    await bench.assign()
    assert bench.consumer.assigned.is_set()
    await bench.member.listener.on_partitions_revoked({A, B})
    assert bench.revoked == [({A, B}, {A, B})]
    assert bench.owner.released == [{A, B}]
    assert not bench.consumer.assigned.is_set()
    await bench.consumer.stop(1.0)


def test_a_consumer_that_was_not_started_is_a_bug() -> None:
    with pytest.raises(RuntimeError, match="This is a bug"):
        Bench().consumer.rejoin()
