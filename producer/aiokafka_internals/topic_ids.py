"""The ids of topics: a topic that is deleted and created again has the same name and another id.

aiokafka (0.14) knows topics by their names alone. It would read a recreated topic on from the position in the old one,
and skip what is new below it. To go, it needs topic ids in its metadata and its fetches (KIP-516).
"""

import asyncio
import struct
from collections.abc import Callable, Collection
from io import BytesIO
from typing import Any, NamedTuple

import structlog
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError
from aiokafka.protocol.api import Request

from penstock.producer.aiokafka_internals.flexible_request import (
    FlexibleRequest,
    behind_tags,
    behind_text,
    compact,
    varint,
)

NO_TOPIC_ID = bytes(16)  # of topics of brokers before Kafka 2.8
_RETRY_S = 0.2
_ERROR = struct.Struct(">h")
_INT_BYTES, _PARTITION_BYTES = 4, 14  # of a partition: error, number, leader, leader's epoch

log = structlog.get_logger("penstock.consumer")


class _Asked(FlexibleRequest):
    API_KEY, API_VERSION = 3, 10


class _MetadataById(Request[_Asked]):  # type: ignore[misc]  # aiokafka has no type information
    """Kafka's metadata request, version 10, the first whose answer has ids."""

    API_KEY = _Asked.API_KEY

    def __init__(self, topics: Collection[str]) -> None:
        self._topics = [topic.encode() for topic in topics]

    def build(self, request_class: type) -> Any:
        """Called by aiokafka if the broker knows the version."""
        topics = [b"".join([NO_TOPIC_ID, compact(len(name)), name, b"\0"]) for name in self._topics]
        # No creation, no operations of the cluster, none of the topics; no tags.
        return request_class(b"".join([compact(len(topics)), *topics, bytes(4)]), _TopicsWithIds())


class _Topics(NamedTuple):
    """Of the answer: error, name and id of each topic."""

    topics: list[tuple[int, str, bytes]]


class _TopicsWithIds:
    def decode(self, data: BytesIO) -> _Topics:
        raw = data.read()
        num_brokers, at = varint(raw, _INT_BYTES)  # behind the throttle time
        for _ in range(num_brokers - 1):
            at = behind_text(raw, at + _INT_BYTES)  # id, host
            at = behind_tags(raw, behind_text(raw, at + _INT_BYTES))  # port, rack
        num_topics, at = varint(raw, behind_text(raw, at) + _INT_BYTES)  # cluster's id, controller
        topics = []
        for _ in range(num_topics - 1):
            (error,) = _ERROR.unpack_from(raw, at)
            size, at = varint(raw, at + _ERROR.size)
            end = at + size - 1
            id_end = end + len(NO_TOPIC_ID)
            topics.append((error, raw[at:end].decode(), raw[end:id_end]))
            at = behind_tags(raw, _behind_partitions(raw, id_end + 1) + _INT_BYTES)  # whether internal, operations
        return _Topics(topics)


def _behind_partitions(raw: bytes, at: int) -> int:
    num_partitions, at = varint(raw, at)
    for _ in range(num_partitions - 1):
        at += _PARTITION_BYTES
        for _ in range(3):  # replicas, in-sync and offline ones
            count, at = varint(raw, at)
            at += _INT_BYTES * max(0, count - 1)
        at = behind_tags(raw, at)
    return at


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
