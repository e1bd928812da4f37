"""Fetch requests and answers are, byte for byte and field by field, those of aiokafka."""

import random
import struct
from collections.abc import Mapping, Sequence
from io import BytesIO
from types import MappingProxyType
from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchRequest, FetchRequest_v4, FetchRequest_v11, FetchResponse_v11
from aiokafka.protocol.types import (
    AbstractType,
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    TaggedFields,
)

from penstock.worker.kafka.fetching.fetch_messages import FetchMessage
from penstock.worker.kafka.fetching.topic_ids import TopicIds

_TAGS = ("tags", TaggedFields)


class Uuid(AbstractType[bytes]):  # type: ignore[misc]  # aiokafka has no type information
    @classmethod
    def encode(cls, value: bytes) -> bytes:
        return value


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
                    _TAGS,
                ),
            ),
            _TAGS,
        ),
    ),
    ("forgotten_topics", CompactArray(("topic_id", Uuid), ("partitions", CompactArray(Int32)), _TAGS)),
    ("rack_id", CompactString("utf-8")),
    _TAGS,
)
_ANSWERED = (
    ("partition", Int32),
    ("error_code", Int16),
    ("high_watermark", Int64),
    ("last_stable_offset", Int64),
    ("log_start_offset", Int64),
    ("aborted", CompactArray(("producer_id", Int64), ("first_offset", Int64), _TAGS)),
    ("preferred_read_replica", Int32),
    ("records", CompactBytes),
    _TAGS,
)
ANSWER = Schema(
    ("throttle_time_ms", Int32),
    ("error_code", Int16),
    ("session_id", Int32),
    ("topics", CompactArray(("topic_id", Uuid), ("partitions", CompactArray(*_ANSWERED)), _TAGS)),
    _TAGS,
)

TOPICS = [("requests.ü", [(number, 7 * number, 262_144) for number in range(48)]), ("bulk", [(5, 2**40, 1)]), ("", [])]
BOUNDS = 100, 1, 4 * 1024 * 1024, 1


IDS = {"requests.ü": b"0123456789abcdef", "bulk": b"fedcba9876543210", "": b"no name has this."[:16]}


def message(rack: str = "", ids: Mapping[str, bytes] = MappingProxyType({})) -> FetchMessage:
    topic_ids = TopicIds()
    topic_ids._ids |= ids
    return FetchMessage(*BOUNDS, topics=TOPICS, rack_id=rack, topic_ids=topic_ids)


def answer(partitions: dict[str, list[tuple[Any, ...]]]) -> FetchResponse_v11:
    return FetchResponse_v11(3, 0, 9, list(partitions.items()))


def decoded(raw: bytes) -> Any:
    return message().build(FetchRequest_v11).RESPONSE_TYPE.decode(BytesIO(raw))


@pytest.mark.parametrize("rack", ["", "a"])
def test_a_request_is_that_of_aiokafka(rack: str) -> None:
    ours = message(rack, {"bulk": IDS["bulk"]}).prepare({1: (4, 18)})  # one topic has no id
    theirs = FetchRequest(*BOUNDS, TOPICS, rack_id=rack).build(FetchRequest_v11)
    assert ours.encode() == theirs.encode()
    assert ours.API_VERSION == 11


def test_a_broker_without_the_version_is_asked_in_aiokafkas_way() -> None:
    ours = message(ids=IDS).prepare({1: (0, 4)})
    theirs = FetchRequest(*BOUNDS, TOPICS).build(FetchRequest_v4)
    assert type(ours) is FetchRequest_v4
    assert ours.encode() == theirs.encode()


def test_partitions_with_records_or_an_error_are_those_of_aiokafka() -> None:
    chosen = random.Random(1)
    partitions = [
        (
            number,
            chosen.choice([0, 6]),
            50,
            40,
            3,
            chosen.choice([None, [], [(1, 2), (3, 4)]]),
            -1,
            chosen.randbytes(size),
        )
        for number, size in enumerate(chosen.choices([0, 1, 500], k=60))
    ]
    theirs = answer({"requests.ü": partitions, "bulk": [(2, 0, 1, 1, 0, None, 4, None)], "": []})
    ours = decoded(theirs.encode())
    told = [(*fields[:5], fields[5] or [], *fields[6:]) for fields in partitions if fields[1] or fields[7]]
    assert ours.topics == [("requests.ü", told), ("bulk", []), ("", [])]
    assert (ours.throttle_time_ms, ours.error_code, ours.session_id) == (3, 0, 9)
    assert 0 < len(told) < len(partitions)


def answer_by_id(partitions: Sequence[tuple[Any, ...]], topic: str = "requests.ü") -> bytes:
    return bytes(ANSWER.encode((3, 0, 9, [(IDS[topic], partitions, {})], {})))


def test_a_request_by_ids_has_them_in_place_of_names() -> None:
    asked = message("a", IDS).prepare({1: (4, 18)})
    assert (asked.API_VERSION, asked.FLEXIBLE_VERSION) == (13, True)
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
    assert (found.throttle_time_ms, found.error_code, found.session_id) == (3, 0, 9)
    [(topic, partitions)] = found.topics
    assert topic == "requests.ü"
    assert partitions[0] == (1, 0, 50, 40, 3, [(1, 2), (3, 4)], -1, bytes(size))
    assert [one[:2] for one in partitions[1:]] == [(3, 1), (4, 3), (5, 3)]  # aiokafka then asks for metadata
    assert asked.faults == [(topic, 3, 21, 1), (topic, 4, 28, 100), (topic, 5, 35, 103)]


def test_an_answer_that_ends_early_is_an_error() -> None:
    raw = answer({"requests": [(1, 0, 1, 1, 0, None, -1, b"records")]}).encode()
    for size in range(len(raw)):
        with pytest.raises((struct.error, UnicodeDecodeError)):
            decoded(raw[:size])
    raw = answer_by_id([(1, 0, 1, 1, 0, None, -1, b"records", {})])
    for size in range(len(raw) - 1):  # the last byte has the tags of the whole, which are not read
        with pytest.raises((struct.error, IndexError)):
            message(ids=IDS).prepare({1: (4, 18)}).RESPONSE_TYPE.decode(BytesIO(raw[:size]))


def test_a_negative_length_ends_an_answer() -> None:
    """Read as a step back, it would name one topic again and again, 2³¹ times."""
    no_partitions = struct.pack(">hi", 0, 0)
    with pytest.raises(struct.error):
        decoded(struct.pack(">ihii", 0, 0, 0, 2_000_000) + no_partitions + struct.pack(">h", -6))
