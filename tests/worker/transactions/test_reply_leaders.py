"""How long reply partitions have had no leader that can be reached."""

from typing import Any

import pytest

from penstock.worker.transactions.reply_leaders import ReplyLeaders


class Client:
    """aiokafka's client, as far as leaders go."""

    def __init__(self) -> None:
        self.cluster = self
        self.leader: int | None = 1
        self.is_reachable = True
        self.is_answering = True
        self.num_looks = 0

    def leader_for_partition(self, _: object) -> int | None:
        return self.leader

    async def force_metadata_update(self) -> bool:
        self.num_looks += 1
        return self.is_answering

    async def ready(self, leader: int) -> bool:
        self.num_looks += 1
        return self.is_reachable


class Look:
    def __init__(self) -> None:
        self.now = 100.0
        self.client = Client()
        self._leaders = ReplyLeaders(lambda: self.now)

    async def at(self, now: float) -> float | None:
        self.now = now
        client: Any = self.client
        return await self._leaders.missing_s(client, "replies", 0)


@pytest.mark.parametrize(("leader", "is_reachable"), [(None, True), (-1, True), (1, False)])
async def test_a_leader_is_missing_since_the_first_look_that_found_none(leader: int | None, is_reachable: bool) -> None:
    look = Look()
    assert await look.at(100) is None
    look.client.leader, look.client.is_reachable = leader, is_reachable
    assert await look.at(110) == 0
    assert await look.at(125) == 15
    look.client.leader, look.client.is_reachable = 2, True
    assert await look.at(126) is None
    look.client.is_reachable = False
    assert await look.at(130) == 0


async def test_the_time_begins_again_after_an_outage_of_all_brokers() -> None:
    look = Look()
    look.client.is_reachable = look.client.is_answering = False
    assert await look.at(100) == 0
    assert await look.at(200) == 0
    look.client.is_answering = True
    assert await look.at(210) == 10


async def test_a_missing_leader_is_looked_for_twice_a_second_by_all_partitions_together() -> None:
    look = Look()
    look.client.leader = None
    for tenths in range(100):
        await look.at(100 + tenths / 10)
    assert look.client.num_looks == 20
