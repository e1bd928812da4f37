"""The end of `--once`: after quiet turns, not after a time in which the process stood still."""

from typing import Any

import pytest

from penstock.worker import end_of_topics
from penstock.worker.end_of_topics import EndOfTopics


class World:
    """A consumer at the ends of its topics, the dispatcher and back-pressure of a worker, and the clock."""

    def __init__(self) -> None:
        self.now, self.num_partitions, self.num_records, self.ends = 100.0, 1, 0, True
        self.assigned = self
        self.knows_topics = True
        self.drained = 0

    def monotonic(self) -> float:
        return self.now

    async def is_at_end(self) -> bool:
        return self.ends

    def is_set(self) -> bool:
        return True

    def drain(self) -> None:
        self.drained += 1

    def resume(self) -> None:
        self.drained = 0


async def turns(world: World, end: EndOfTopics, turn_s: float, most: int) -> int:
    """The turns until the end is reached, or `most`."""
    for number in range(most):
        world.now += turn_s
        if await end.is_reached():
            return number + 1
    return most


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(end_of_topics, "time", made)
    return made


def end_of(world: Any) -> EndOfTopics:
    return EndOfTopics(world, world, world)


async def test_the_end_is_reached_after_five_quiet_seconds(world: World) -> None:
    assert await turns(world, end_of(world), 0.1, 100) in {50, 51}  # sums of 0.1
    assert world.drained


async def test_a_process_that_stood_still_looks_again(world: World) -> None:
    assert await turns(world, end_of(world), 60.0, 100) == 10


async def test_a_topic_that_no_broker_knows_yet_is_waited_for(world: World) -> None:
    world.knows_topics = False
    assert await turns(world, end_of(world), 0.1, 1000) in {300, 301}


@pytest.mark.parametrize(("ends", "num_records"), [(False, 0), (True, 1)])
async def test_new_or_unanswered_records_begin_the_quiet_time_again(world: World, ends: bool, num_records: int) -> None:
    end = end_of(world)
    assert await turns(world, end, 0.1, 45) == 45
    world.ends, world.num_records = ends, num_records
    assert not await end.is_reached()
    world.ends, world.num_records = True, 0
    assert await turns(world, end, 0.1, 100) >= 49
