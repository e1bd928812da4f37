"""The ids of topics: a topic that was recreated is told from one that a broker does not know yet. A fake client."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import IncompatibleBrokerVersion, KafkaConnectionError

from penstock.worker.kafka.fetching import topic_ids
from penstock.worker.kafka.fetching.topic_ids import TopicIds, fetch_topic_ids
from penstock.worker.kafka.kafka_record import NO_TOPIC_ID

A, B = b"a topic's id, 16", b"another one's id"


class Cluster:
    """Its answers, one after another; the last one stays."""

    def __init__(self, *answers: dict[str, bytes] | Exception) -> None:
        self.answers = list(answers)

    def get_random_node(self) -> int:
        return 1

    async def send(self, node: int, request: object) -> Any:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(topics=[(0 if one else 3, topic, one) for topic, one in answer.items()])


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_ids, "_RETRY_S", 0.0)


async def test_brokers_without_ids_give_none() -> None:
    for error in (IncompatibleBrokerVersion(), NotImplementedError()):
        assert await fetch_topic_ids(Cluster(error), ["t"]) == {"t": NO_TOPIC_ID}


async def test_a_read_waits_for_brokers_and_topics_and_not_for_all_of_them() -> None:
    ids = TopicIds()
    cluster = Cluster(KafkaConnectionError(), {"t": b"", "u": b""}, {"t": A, "u": b""})
    assert set(await ids.read(cluster, {"t", "u"})) == {"t"}
    assert (ids.of("t"), ids.of("u")) == (A, NO_TOPIC_ID)
    assert not await ids.read(cluster, set())


async def test_a_topic_with_another_id_was_recreated_and_one_with_its_id_is_read_on() -> None:
    ids, told = TopicIds(), asyncio.Queue[str]()
    await ids.read(Cluster({"t": A, "u": A}), {"t", "u"})
    cluster = Cluster({"t": b"", "u": b""}, KafkaConnectionError(), {"t": b"", "u": A}, {"t": B})
    watching = asyncio.create_task(ids.watch(cluster, told.put_nowait))
    for topic in ("t", "u", "t"):
        ids.note_unknown(topic)
    assert await asyncio.wait_for(told.get(), 60) == "t"
    assert (ids.is_unknown("t"), ids.is_unknown("u")) == (True, False)
    ids.note_unknown("t")  # it was told, and is not fetched before it is read anew
    await ids.read(cluster, {"t"})
    assert (ids.of("t"), ids.is_unknown("t"), told.qsize()) == (B, False, 0)
    watching.cancel()
