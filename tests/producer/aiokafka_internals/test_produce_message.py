"""Produce requests and answers of version 9 are those of Kafka's schemas, and of older brokers aiokafka's."""

import struct
from io import BytesIO
from typing import Any

import pytest
from aiokafka.protocol.produce import ProduceRequest, ProduceRequest_v7, ProduceResponse_v8
from aiokafka.protocol.types import CompactArray, CompactBytes, CompactString, Int16, Int32, Int64, Schema

from penstock.producer.aiokafka_internals.produce_message import ProduceMessage
from tests.producer.aiokafka_internals.kafka_types import TAGS

# Version 9, as Kafka's ProduceRequest.json and ProduceResponse.json describe it.
REQUEST = Schema(
    ("transactional_id", CompactString("utf-8")),
    ("acks", Int16),
    ("timeout_ms", Int32),
    (
        "topics",
        CompactArray(
            ("name", CompactString("utf-8")),
            ("partitions", CompactArray(("index", Int32), ("records", CompactBytes), TAGS)),
            TAGS,
        ),
    ),
    TAGS,
)
_FAULTS = CompactArray(("batch_index", Int32), ("message", CompactString("utf-8")), TAGS)
_ANSWERED = (
    ("index", Int32),
    ("error_code", Int16),
    ("base_offset", Int64),
    ("log_append_time_ms", Int64),
    ("log_start_offset", Int64),
    ("record_errors", _FAULTS),
    ("error_message", CompactString("utf-8")),
    TAGS,
)
ANSWER = Schema(
    ("responses", CompactArray(("name", CompactString("utf-8")), ("partitions", CompactArray(*_ANSWERED)), TAGS)),
    ("throttle_time_ms", Int32),
    TAGS,
)
TOPICS = [("replies.ü", [(0, b"batch"), (300, bytes(20_000))]), ("dlq" * 50, [(2**31 - 1, b"")])]
VERSIONS = {ProduceRequest.API_KEY: (3, 12)}


def test_a_request_is_that_of_the_schema() -> None:
    asked = ProduceMessage(-1, 40_000, TOPICS).prepare(VERSIONS)
    assert asked.build_request_header(7, "me").encode() == struct.pack(">hhih2sb", 0, 9, 7, 2, b"me", 0)
    topics: list[Any] = [
        (name, [(number, batch, {}) for number, batch in partitions], {}) for name, partitions in TOPICS
    ]
    assert asked.encode() == REQUEST.encode((None, -1, 40_000, topics, {}))


def test_an_older_broker_is_asked_in_aiokafkas_way() -> None:
    ours = ProduceMessage(-1, 40_000, TOPICS).prepare({ProduceRequest.API_KEY: (0, 7)})
    theirs = ProduceRequest(None, -1, 40_000, TOPICS).build(ProduceRequest_v7)
    assert type(ours) is ProduceRequest_v7
    assert ours.encode() == theirs.encode()


def answer() -> bytes:
    partitions: list[Any] = [
        (0, 0, 2**40, -1, 3, [], None, {}),
        (300, 87, -1, -1, -1, [(4, "a null key", {}), (5, None, {})], "the batch: ü", {0: b"leader"}),
        (7, 2, -1, 9, -1, None, "", {}),
    ]
    return bytes(ANSWER.encode(([("replies.ü", partitions, {}), ("dlq" * 50, [], {1: b""})], 5, {})))


def test_an_answer_has_what_aiokafka_reads() -> None:
    header = struct.pack(">ib", 7, 0)
    asked = ProduceMessage(-1, 40_000, TOPICS).prepare(VERSIONS)
    data = BytesIO(header + answer())
    assert asked.parse_response_header(data).correlation_id == 7
    found = asked.RESPONSE_TYPE.decode(data)
    assert found.API_VERSION == ProduceResponse_v8.API_VERSION
    assert found.topics == [
        (
            "replies.ü",
            [
                (0, 0, 2**40, -1, 3, (), None),
                (300, 87, -1, -1, -1, (), "the batch: ü"),
                (7, 2, -1, 9, -1, (), None),
            ],
        ),
        ("dlq" * 50, []),
    ]


def test_an_answer_that_ends_early_is_an_error() -> None:
    raw, asked = answer(), ProduceMessage(-1, 40_000, TOPICS).prepare(VERSIONS)
    for size in range(len(raw) - 5):  # the throttle time and the tags of the whole are not read
        with pytest.raises((struct.error, IndexError, ValueError)):
            asked.RESPONSE_TYPE.decode(BytesIO(raw[:size]))
