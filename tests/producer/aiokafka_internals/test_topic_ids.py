"""The ids of topics: a topic that was recreated is told from one that a broker does not know yet. A fake client."""

import asyncio
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import IncompatibleBrokerVersion, KafkaConnectionError
from aiokafka.protocol.types import Boolean, CompactArray, CompactString, Int16, Int32, Schema

from penstock.producer.aiokafka_internals import topic_ids
from penstock.producer.aiokafka_internals.topic_ids import NO_TOPIC_ID, TopicIds, fetch_topic_ids
from tests.producer.aiokafka_internals.kafka_types import TAGS, Uuid

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


# Version 10, as Kafka's MetadataRequest.json and MetadataResponse.json describe it.
TEXT = CompactString("utf-8")
REQUEST = Schema(
    ("topics", CompactArray(("topic_id", Uuid), ("name", TEXT), TAGS)),
    ("allow_auto_topic_creation", Boolean),
    ("include_cluster_authorized_operations", Boolean),
    ("include_topic_authorized_operations", Boolean),
    TAGS,
)
NODES = CompactArray(Int32)
PARTITION: Any = (
    ("error_code", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", NODES),
    ("isr", NODES),
    ("offline_replicas", NODES),
    TAGS,
)
TOPIC: Any = (
    ("error_code", Int16),
    ("name", TEXT),
    ("topic_id", Uuid),
    ("is_internal", Boolean),
    ("partitions", CompactArray(*PARTITION)),
    ("authorized_operations", Int32),
    TAGS,
)
ANSWER = Schema(
    ("throttle_time_ms", Int32),
    ("brokers", CompactArray(("node_id", Int32), ("host", TEXT), ("port", Int32), ("rack", TEXT), TAGS)),
    ("cluster_id", TEXT),
    ("controller_id", Int32),
    ("topics", CompactArray(*TOPIC)),
    ("cluster_authorized_operations", Int32),
    TAGS,
)


class Connection(Cluster):
    """Encodes what is asked, and decodes these bytes, as a connection to a broker of the present."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.asked = b""

    async def send(self, node: int, request: Any) -> Any:
        asked = request.prepare({3: (0, 13)})
        assert (asked.API_KEY, asked.API_VERSION) == (3, 10)
        self.asked = asked.encode()
        return asked.RESPONSE_TYPE.decode(BytesIO(self.raw))


async def test_ids_are_asked_for_and_read_in_the_form_of_kafkas_schemas() -> None:
    partitions: list[Any] = [(0, number, 1, 7, [1, 2], [1], [], {}) for number in range(200)]
    topics = [(0, "t", A, False, partitions, -1, {}), (3, "gone", bytes(16), False, [], -1, {1: b"?"})]
    brokers = [(1, "host", 9092, None, {}), (2, "host", 9093, "rack", {0: b"tag"})]
    connection = Connection(ANSWER.encode((0, brokers, None, 1, [*topics, (0, "ü", B, True, [], -1, {})], -1, {})))
    assert await fetch_topic_ids(connection, ["t", "gone", "ü"]) == {"t": A, "ü": B}
    asked: list[Any] = [(NO_TOPIC_ID, name, {}) for name in ("t", "gone", "ü")]
    assert connection.asked == REQUEST.encode((asked, False, False, False, {}))


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
