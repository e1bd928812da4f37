"""Fetch requests and answers are those of Kafka's schemas, by ids or names, and those of old brokers are aiokafka's."""

import struct
from collections.abc import Mapping, Sequence
from io import BytesIO
from types import MappingProxyType
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v4, FetchRequest_v11, FetchResponse_v11
from aiokafka.protocol.types import (
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
)

from penstock.producer.aiokafka_internals.fetch_messages import FetchMessage
from penstock.producer.aiokafka_internals.topic_ids import TopicIds
from tests.producer.aiokafka_internals.kafka_types import TAGS, Uuid

# Version 13, as Kafka's FetchRequest.json and FetchResponse.json describe it.
REQUEST = Schema(
    ("replica_id", Int32),
    ("max_wait_ms", Int32),
    ("min_bytes", Int32),
    ("max_bytes", Int32),
    ("isolation_level", Int8),
    ("session_id", Int32),
    ("session_epoch", Int32),
    (
        "topics",
        CompactArray(
            ("topic_id", Uuid),
            (
                "partitions",
                CompactArray(
                    ("partition", Int32),
                    ("current_leader_epoch", Int32),
                    ("fetch_offset", Int64),
                    ("last_fetched_epoch", Int32),
                    ("log_start_offset", Int64),
                    ("partition_max_bytes", Int32),
                    TAGS,
                ),
            ),
            TAGS,
        ),
    ),
    ("forgotten_topics", CompactArray(("topic_id", Uuid), ("partitions", CompactArray(Int32)), TAGS)),
    ("rack_id", CompactString("utf-8")),
    TAGS,
)
_ANSWERED = (
    ("partition", Int32),
    ("error_code", Int16),
    ("high_watermark", Int64),
    ("last_stable_offset", Int64),
    ("log_start_offset", Int64),
    ("aborted", CompactArray(("producer_id", Int64), ("first_offset", Int64), TAGS)),
    ("preferred_read_replica", Int32),
    ("records", CompactBytes),
    TAGS,
)
ANSWER = Schema(
    ("throttle_time_ms", Int32),
    ("error_code", Int16),
    ("session_id", Int32),
    ("topics", CompactArray(("topic_id", Uuid), ("partitions", CompactArray(*_ANSWERED)), TAGS)),
    TAGS,
)

OFFSETS = {"requests.ü": {number: 7 * number for number in range(48)}, "bulk": {5: 2**40}, "": {}}
MOST = 262_144
TOPICS = [(topic, [(number, at, MOST) for number, at in asked.items()]) for topic, asked in OFFSETS.items()]
BOUNDS = 100, 1, 4 * 1024 * 1024, 1


IDS = {"requests.ü": b"0123456789abcdef", "bulk": b"fedcba9876543210", "": b"no name has this."[:16]}


def message(rack: str = "", ids: Mapping[str, bytes] = MappingProxyType({})) -> FetchMessage:
    topic_ids = TopicIds()
    topic_ids._ids |= ids
    return FetchMessage(*BOUNDS, partition_bytes=MOST, rack_id=rack, offsets=OFFSETS, topic_ids=topic_ids)


def test_a_broker_without_flexible_versions_is_asked_in_aiokafkas_way() -> None:
    ours = message("a", {"bulk": IDS["bulk"]}).prepare({1: (4, 11)})
    theirs = FetchRequest(*BOUNDS, TOPICS, rack_id="a").build(FetchRequest_v11)
    assert type(ours) is FetchRequest_v11
    assert ours.encode() == theirs.encode()


def test_an_old_broker_is_asked_in_aiokafkas_way() -> None:
    ours = message(ids=IDS).prepare({1: (0, 4)})
    theirs = FetchRequest(*BOUNDS, TOPICS).build(FetchRequest_v4)
    assert type(ours) is FetchRequest_v4
    assert ours.encode() == theirs.encode()


def test_errors_of_an_answer_by_names_are_noted() -> None:
    asked = message()
    partitions: list[Any] = [(2, 0, 50, 40, 3, [], -1, b"records"), (3, 1, -1, -1, -1, [], -1, b"")]
    raw = FetchResponse_v11(3, 0, 9, [("requests.ü", partitions), ("bulk", [])]).encode()
    found = asked.prepare({1: (4, 11)}).RESPONSE_TYPE.decode(BytesIO(raw))
    assert found.topics == [("requests.ü", partitions), ("bulk", [])]
    assert asked.faults == [("requests.ü", 3, 21, 1)]


def answer_by_id(partitions: Sequence[tuple[Any, ...]], topic: str = "requests.ü") -> bytes:
    return bytes(ANSWER.encode((3, 0, 9, [(IDS[topic], partitions, {})], {})))


def test_a_request_by_ids_has_them_in_place_of_names() -> None:
    asked = message("a", IDS).prepare({1: (4, 18)})
    header = asked.build_request_header(7, "me")
    assert header.encode() == struct.pack(">hhih2sb", 1, 13, 7, 2, b"me", 0)
    assert asked.parse_response_header(BytesIO(struct.pack(">ib", 7, 0))).correlation_id == 7
    topics: list[Any] = [
        (IDS[topic], [(number, -1, at, -1, -1, most, {}) for number, at, most in partitions], {})
        for topic, partitions in TOPICS
    ]
    assert asked.encode() == REQUEST.encode((-1, *BOUNDS, 0, -1, topics, [], "a", {}))


@pytest.mark.parametrize("size", [1, 126, 127, 128, 20_000])
def test_an_answer_by_ids_has_the_names_that_were_asked_for(size: int) -> None:
    asked = message(ids=IDS)
    epoch = b"\x00\x0c" + bytes(12)
    raw = answer_by_id(
        [
            (1, 0, 50, 40, 3, [(1, 2, {}), (3, 4, {})], -1, bytes(size), {}),
            (2, 0, 50, 40, 3, None, -1, None, {}),
            (3, 1, -1, -1, -1, None, -1, b"", {1: epoch[1:]}),
            (4, 100, -1, -1, -1, [], -1, None, {}),
            (5, 103, -1, -1, -1, [], -1, None, {}),
        ]
    )
    found = asked.prepare({1: (4, 18)}).RESPONSE_TYPE.decode(BytesIO(raw))
    assert found.API_VERSION == FetchResponse_v11.API_VERSION
    [(topic, partitions)] = found.topics
    assert topic == "requests.ü"
    assert partitions[0] == (1, 0, 50, 40, 3, [(1, 2), (3, 4)], -1, bytes(size))
    assert [one[:2] for one in partitions[1:]] == [(3, 1), (4, 3), (5, 3)]  # aiokafka then asks for metadata
    assert asked.faults == [(topic, 3, 21, 1), (topic, 4, 28, 100), (topic, 5, 35, 103)]
    assert asked.topics == [(topic, [(number, 7 * number, MOST) for number in (1, 3, 4, 5)])]  # aiokafka reads them


def test_by_name_all_else_is_the_same() -> None:
    """Version 12, of topics without ids and of brokers that know none."""
    by_id = message("a", IDS).prepare({1: (4, 18)})
    for asked in (message("a", {"bulk": IDS["bulk"]}).prepare({1: (4, 18)}), message("a", IDS).prepare({1: (4, 12)})):
        assert asked.build_request_header(7, "me").encode() == struct.pack(">hhih2sb", 1, 12, 7, 2, b"me", 0)
        named = by_id.encode()
        raw = answer_by_id([(1, 0, 50, 40, 3, None, -1, b"records", {})])
        for topic, topic_id in IDS.items():
            name = CompactString("utf-8").encode(topic)
            named, raw = named.replace(topic_id, name), raw.replace(topic_id, name)
        assert asked.encode() == named
        assert asked.RESPONSE_TYPE.decode(BytesIO(raw)).topics == [
            ("requests.ü", [(1, 0, 50, 40, 3, [], -1, b"records")])
        ]


def test_a_partition_that_was_not_asked_for_is_an_error_of_the_answer() -> None:
    """aiokafka looks it up among its own, and the task that fetches would end."""
    raw = answer_by_id([(99, 0, 1, 1, 0, None, -1, b"records", {})])
    with pytest.raises(struct.error):
        message(ids=IDS).prepare({1: (4, 18)}).RESPONSE_TYPE.decode(BytesIO(raw))


def test_an_answer_that_ends_early_is_an_error() -> None:
    raw = answer_by_id([(1, 0, 1, 1, 0, None, -1, b"records", {})])
    for size in range(len(raw) - 1):  # the last byte has the tags of the whole, which are not read
        with pytest.raises((struct.error, IndexError)):
            message(ids=IDS).prepare({1: (4, 18)}).RESPONSE_TYPE.decode(BytesIO(raw[:size]))
