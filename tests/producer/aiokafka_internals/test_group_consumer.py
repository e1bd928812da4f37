"""The parts of a member, and what it tells. aiokafka's own parts, without a broker."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import AIOKafkaClient, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from penstock.producer.aiokafka_internals.committed_offsets import CheckedCoordinator
from penstock.producer.aiokafka_internals.fetcher import LeanFetcher
from penstock.producer.aiokafka_internals.group_consumer import GroupConsumer
from penstock.producer.aiokafka_internals.topic_ids import TopicIds

SOURCE = TopicPartition("requests", 0)


@pytest.fixture
async def member(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A member that has started, and whose tasks have not run."""

    async def bootstrap(_: AIOKafkaClient) -> None: ...

    monkeypatch.setattr(AIOKafkaClient, "bootstrap", bootstrap)
    made = GroupConsumer(TopicIds(), lambda *_: None, bootstrap_servers="nowhere:1", group_id="g")
    await made.start()
    yield made
    await made.stop()


async def test_a_member_has_the_fetcher_and_the_coordinator_of_this_package(member: Any) -> None:
    assert (type(member._fetcher), type(member._coordinator)) == (LeanFetcher, CheckedCoordinator)
    assert member._fetcher._client is member.client
    await asyncio.sleep(0)  # the first step of their tasks
    assert member.ended_tasks() == {}


async def test_a_member_tells_its_name_and_its_eviction(member: Any) -> None:
    member._coordinator.generation = 3
    assert (member.member_id, member.is_evicted) == ("", False)
    member._coordinator.member_id, member._coordinator.generation = "member-1", -1
    assert (member.member_id, member.is_evicted) == ("member-1", True)


async def test_a_member_whose_reader_of_commits_has_died_joins_again(member: Any) -> None:
    reader = member._coordinator._commit_refresh_task = asyncio.get_running_loop().create_future()
    subscription = SimpleNamespace(assignment=())
    member.rejoin_if_stuck()
    assert not member._coordinator.need_rejoin(subscription)
    reader.set_result(None)
    member.rejoin_if_stuck()
    assert member._coordinator.need_rejoin(subscription)


async def test_commits_come_with_their_metadata(member: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fetch(sources: list[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        return {source: OffsetAndMetadata(7, "marked") for source in sources}

    monkeypatch.setattr(member._coordinator, "fetch_committed_offsets", fetch)
    assert await member.fetch_committed({SOURCE}) == {SOURCE: (7, "marked")}


@pytest.mark.parametrize("part", ["membership", "fetches", "metadata"])
async def test_a_task_that_has_ended_is_told_with_its_error(
    member: Any, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    owner, name = {
        "membership": (member._coordinator, "_coordination_task"),
        "fetches": (member._fetcher, "_fetch_task"),
        "metadata": (member.client, "_sync_task"),
    }[part]
    ended = asyncio.get_running_loop().create_future()
    ended.set_exception(KafkaError("unexpected"))
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, ended)
        ((what, error),) = member.ended_tasks().items()
    assert part in what
    assert isinstance(error, KafkaError)
