"""A coordinator that cannot tell what is committed says so, and that is not the absence of commits."""

from collections.abc import Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaClient, TopicPartition
from aiokafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    KafkaError,
    NotCoordinatorError,
    UnknownError,
)
from aiokafka.protocol.commit import OffsetFetchRequest, OffsetFetchResponse_v1, OffsetFetchResponse_v3
from aiokafka.protocol.coordination import FindCoordinatorResponse_v1

from penstock.producer.aiokafka_internals.admin import FailoverAdmin
from penstock.producer.aiokafka_internals.group_consumer import GroupConsumer
from penstock.producer.aiokafka_internals.topic_ids import TopicIds

SOURCE = TopicPartition("requests", 0)
COMMITS = [("requests", [(0, 7, "marked", 0)])]
KNOWN = OffsetFetchResponse_v3(0, COMMITS, 0)
BRIEF: dict[str, Any] = {"bootstrap_servers": "nowhere:1", "retry_backoff_ms": 1}


def failed(code: int) -> OffsetFetchResponse_v3:
    """An answer as brokers give it: with an error, and without partitions."""
    return OffsetFetchResponse_v3(0, [], code)


class Broker:
    """Coordinates each group, and answers requests for committed offsets one after another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[Any] = []
        self.num_lookups = 0
        for name in ("bootstrap", "ready", "send", "coordinator_lookup"):
            monkeypatch.setattr(AIOKafkaClient, name, getattr(self, name))

    async def bootstrap(self) -> None: ...

    async def ready(self, node_id: int, *, group: Any) -> bool:
        return True

    async def coordinator_lookup(self, kind: Any, key: str) -> int:
        self.num_lookups += 1
        return 1

    async def send(self, node_id: int, request: Any, *, group: Any = None) -> Any:
        return (
            self.answers.pop(0)
            if isinstance(request, OffsetFetchRequest)
            else FindCoordinatorResponse_v1(0, 0, "", 1, "", 1)
        )


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


async def committed(broker: Broker, answers: Sequence[Any]) -> dict[TopicPartition, tuple[int, str]]:
    """The offsets that a member of the group is told. Every answer is used."""
    broker.answers = [*answers]
    member = GroupConsumer(TopicIds(), lambda *_: None, group_id="g", **BRIEF)
    await member.start()
    try:
        return await member.fetch_committed({SOURCE})
    finally:
        await member.stop()
        assert broker.answers == []


@pytest.mark.parametrize(
    ("error", "num_lookups"),
    [(CoordinatorLoadInProgressError, 1), (CoordinatorNotAvailableError, 3), (NotCoordinatorError, 3)],
)
async def test_a_member_asks_again_until_the_coordinator_knows(
    broker: Broker, error: type[KafkaError], num_lookups: int
) -> None:
    answers = [failed(error.errno), failed(error.errno), KNOWN]
    assert await committed(broker, answers) == {SOURCE: (7, "marked")}
    assert broker.num_lookups == num_lookups


@pytest.mark.parametrize("error", [GroupAuthorizationFailedError, UnknownError])
async def test_a_member_is_told_an_error_that_does_not_pass(broker: Broker, error: type[KafkaError]) -> None:
    with pytest.raises(error) as raised:
        await committed(broker, [failed(error.errno)])
    assert raised.value.args == ("g",)


@pytest.mark.parametrize("known", [KNOWN, OffsetFetchResponse_v1(COMMITS)], ids=["version 3", "version 1"])
async def test_an_answer_without_an_error_is_taken(broker: Broker, known: Any) -> None:
    assert await committed(broker, [known]) == {SOURCE: (7, "marked")}


@pytest.mark.parametrize("error", [CoordinatorLoadInProgressError, NotCoordinatorError, GroupAuthorizationFailedError])
async def test_an_admin_is_told_every_error(broker: Broker, error: type[KafkaError]) -> None:
    broker.answers, admin = [failed(error.errno)], FailoverAdmin(**BRIEF)
    with pytest.raises(error) as raised:
        await admin.list_consumer_group_offsets("g", partitions=[SOURCE])
    assert raised.value.args == ("g",)
