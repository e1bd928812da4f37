"""Partitions are read once their owner has them, each by itself."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from penstock.producer.transport.cluster import KafkaRefused
from penstock.worker.kafka.fetching.assignment import Assignment
from penstock.worker.kafka.progress.offsets import Source
from tests.worker.kafka.members import A, B, Member, Owner


async def test_a_partition_that_its_owner_does_not_get_yet_holds_up_no_other() -> None:
    assignment, owner = Assignment({"requests": False}, "penstock-0"), Owner()
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


async def test_an_error_that_ends_the_opening_is_raised() -> None:
    class Refused(Owner):
        async def acquire(self, sources: set[Source]) -> set[Source]:
            refused.set()
            raise KafkaRefused("no transactions")

    assignment, refused = Assignment({"requests": False}, "penstock-0"), asyncio.Event()
    member: Any = Member()
    assignment.check()
    assignment.open(member, Refused(), {A})
    assignment.check()
    await refused.wait()
    await asyncio.sleep(0)
    with pytest.raises(KafkaRefused, match="no transactions"):
        assignment.check()


async def test_a_member_without_a_partition_of_the_online_topic_says_so_once() -> None:
    assignment, owner = Assignment({"requests": False}, "penstock-0"), Owner()
    member: Any = Member()
    with capture_logs() as logs:
        for sources in ({A}, set(), set(), {A}, set()):
            assignment.open(member, owner, sources)
            await assignment.close()
    assert [entry["event"] for entry in logs] == ["member_idle"] * 2
