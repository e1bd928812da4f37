"""The ids of topics: a topic that is deleted and created again has the same name and another id.

aiokafka (0.14) knows topics by their names alone. It would read a recreated topic on from the position in the old one,
and skip what is new below it.
"""

import asyncio
from collections.abc import Callable, Collection
from io import BytesIO
from typing import Any

import structlog
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from penstock.worker.kafka.kafka_record import NO_TOPIC_ID

_RETRY_S = 0.2

log = structlog.get_logger("penstock.consumer")


class _Uuid(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka has no type information
    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value

    @classmethod
    def decode(cls, data: BytesIO) -> bytes:
        return data.read(len(NO_TOPIC_ID))


_TEXT, _TAGS = CompactString("utf-8"), ("tags", TaggedFields)
_NODES = CompactArray(Int32)
_BROKER = ("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), _TAGS
_PARTITION = (
    ("error_code", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", _NODES),
    ("isr", _NODES),
    ("offline_replicas", _NODES),
    _TAGS,
)
_TOPIC = (
    ("error_code", Int16),
    ("topic", _TEXT),
    ("topic_id", _Uuid),
    ("is_internal", Boolean),
    ("partitions", CompactArray(*_PARTITION)),
    ("authorized_operations", Int32),
    _TAGS,
)


class _Answer(Response):  # type: ignore[misc]  # as above
    API_KEY, API_VERSION = 3, 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(*_BROKER)),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        ("topics", CompactArray(*_TOPIC)),
        ("cluster_authorized_operations", Int32),
        _TAGS,
    )


class _Asked(RequestStruct):  # type: ignore[misc]  # as above
    API_KEY, API_VERSION, FLEXIBLE_VERSION = 3, 10, True
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("topic", _TEXT), _TAGS)),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        _TAGS,
    )


class _MetadataById(Request[_Asked]):  # type: ignore[misc]  # as above
    """Kafka's metadata request, version 10, the first whose answer has ids."""

    API_KEY = 3

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = topics

    def build(self, request_class: type) -> Any:
        """Called by aiokafka if the broker knows the version."""
        asked: list[Any] = [(NO_TOPIC_ID, topic, {}) for topic in self._topics]
        return request_class(asked, False, False, False, {})


async def fetch_topic_ids(client: Any, topics: Collection[str]) -> dict[str, bytes]:
    """The present ids of topics, asked of one broker. Topics that it does not know or may not show are left out.

    Brokers before Kafka 2.8 have none: every topic has `NO_TOPIC_ID` there. Raises KafkaError.
    """
    try:
        answer = await client.send(client.get_random_node(), _MetadataById(topics))
    except (IncompatibleBrokerVersion, NotImplementedError):  # aiokafka's words for it
        return dict.fromkeys(topics, NO_TOPIC_ID)
    return {topic: topic_id for error, topic, topic_id, *_ in answer.topics if not error}


class TopicIds:
    """The ids of the topics that an assignment is of. Called on the event loop only."""

    def __init__(self) -> None:
        self._ids: dict[str, bytes] = {}
        self._unknown: set[str] = set()  # topics of which brokers no longer know the id: they are not fetched
        self._to_ask: set[str] = set()  # of those
        self._noted = asyncio.Event()

    def of(self, topic: str) -> bytes:
        """The id under which a topic is read."""
        return self._ids.get(topic, NO_TOPIC_ID)

    def is_unknown(self, topic: str) -> bool:
        """Whether brokers no longer know the id of a topic. It is not to be fetched."""
        return topic in self._unknown

    async def read(self, client: Any, topics: Collection[str]) -> Collection[str]:
        """Read the ids anew. Returns the topics that have one, at least one of them: waits for brokers and topics.

        A spare member asks for none.
        """
        while topics:
            try:
                found = await fetch_topic_ids(client, topics)
            except KafkaError as error:
                log.warning("topic_ids_unreadable", error=repr(error), retry_s=_RETRY_S)
                found = {}
            if found:
                for topic in sorted(topic for topic in found if self._ids.get(topic, found[topic]) != found[topic]):
                    log.warning("topic_recreated", topic=topic)
                self._ids |= found
                self._unknown -= found.keys()
                self._to_ask -= found.keys()
                return found.keys()
            await asyncio.sleep(_RETRY_S)
        return ()

    def forget_unknown(self) -> None:
        """The assignment has ended, and nothing is fetched."""
        self._unknown.clear()
        self._to_ask.clear()

    def note_unknown(self, topic: str) -> None:
        """A broker does not know the id of a topic: it was deleted, or the broker is behind the others."""
        if topic not in self._unknown:
            self._unknown.add(topic)
            self._to_ask.add(topic)
            self._noted.set()

    async def watch(self, client: Any, recreated: Callable[[str], None]) -> None:
        """Ask for the ids of such topics until cancelled. `recreated` is called once for each that has another."""
        while True:
            await self._noted.wait()
            self._noted.clear()
            while self._to_ask:
                await asyncio.sleep(_RETRY_S)
                await self._ask(client, recreated)

    async def _ask(self, client: Any, recreated: Callable[[str], None]) -> None:
        try:
            found = await fetch_topic_ids(client, sorted(self._to_ask))
        except KafkaError as error:
            log.warning("topic_ids_unreadable", error=repr(error), retry_s=_RETRY_S)
            return
        for topic in self._to_ask & found.keys():  # an assignment may have ended meanwhile
            self._to_ask.remove(topic)
            if found[topic] == self.of(topic):
                self._unknown.remove(topic)
            else:
                recreated(topic)
