"""Headers: any bytes give an address and a deadline, or InvalidRequest; golden bytes for other languages."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.producer.errors import InvalidRequest
from penstock.producer.wire.headers import (
    CLASS,
    CORRELATION_ID,
    DEADLINE_MS,
    REPLY_PARTITION,
    REPLY_TOPIC,
    ReplyAddress,
    content_key,
    parse_address,
    parse_deadline_ms,
    parse_is_bulk,
    partition_for,
    request_headers,
)
from penstock.producer.wire.topics import REPLY_TOPIC_PATTERN, bulk_topic, dead_letter_topic, request_topic

NAMES = st.sampled_from([CORRELATION_ID, REPLY_TOPIC, REPLY_PARTITION, DEADLINE_MS, CLASS, "traceparent", "other"])
# Kafka allows null header values; consumers hand them over as None.
ANY_HEADERS = st.lists(st.tuples(NAMES, st.binary(max_size=20) | st.none()), max_size=8)


def test_golden_headers() -> None:
    headers = request_headers(bytes(range(16)), "penstock.replies", 0, 1767225600000)
    assert [(name, value.hex()) for name, value in headers] == [
        ("kafka_correlationId", "000102030405060708090a0b0c0d0e0f"),
        ("kafka_replyTopic", "70656e73746f636b2e7265706c696573"),
        ("kafka_replyPartition", "00000000"),
        ("penstock-deadline-ms", "31373637323235363030303030"),
    ]


def test_golden_reply_key() -> None:
    place = b"penstock.requests.m-3-1234-1767225600000"
    assert content_key(bytes(range(16)) + place).hex() == "81e153a5be672c5155f3b6576df30a92"


@given(st.binary(), st.integers(0, 2**31 - 1), st.integers(0, 10**15 - 1) | st.none())
def test_round_trip(correlation_id: bytes, partition: int, deadline_ms: int | None) -> None:
    headers = request_headers(correlation_id, "penstock.replies.a", partition, deadline_ms)
    assert parse_address(dict(headers)) == ReplyAddress("penstock.replies.a", partition, correlation_id, None)
    assert parse_deadline_ms(dict(headers)) == deadline_ms


@given(ANY_HEADERS)
def test_any_headers_are_read_or_refused(given_headers: list[tuple[str, bytes]]) -> None:
    headers = dict(given_headers)
    with contextlib.suppress(InvalidRequest):
        address = parse_address(headers)
        assert address.topic
        assert address.partition is None or address.partition >= 0
    with contextlib.suppress(InvalidRequest):
        deadline_ms = parse_deadline_ms(headers)
        assert deadline_ms is None or 0 <= deadline_ms < 10**15
    with contextlib.suppress(InvalidRequest):
        assert parse_is_bulk(headers) == (headers.get(CLASS) == b"bulk")


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ([], "no `kafka_replyTopic` header"),
        ([(REPLY_TOPIC, b"")], "no `kafka_replyTopic` header"),
        ([(REPLY_TOPIC, b"a b")], "not a topic name"),
        ([(REPLY_TOPIC, b"\xff")], "not a topic name"),
        ([(REPLY_TOPIC, b"a" * 250)], "not a topic name"),
        ([(REPLY_TOPIC, b"a"), (REPLY_PARTITION, b"0")], "4 bytes, a big-endian int32"),
        ([(REPLY_TOPIC, b"a"), (REPLY_PARTITION, struct.pack(">i", -1))], "must not be negative. Given: -1"),
    ],
)
def test_unanswerable(headers: list[tuple[str, bytes]], says: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_address(dict(headers))
    assert says in caught.value.message


@pytest.mark.parametrize("raw", [b"", b"-1", b"1.5", b"soon", b"1" * 16, "\u0661".encode()])
def test_unreadable_deadline(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match="decimal digits"):
        parse_deadline_ms({DEADLINE_MS: raw})


@pytest.mark.parametrize(("headers", "is_bulk"), [({}, False), ({CLASS: b"online"}, False), ({CLASS: b"bulk"}, True)])
def test_class(headers: dict[str, bytes], is_bulk: bool) -> None:
    assert parse_is_bulk(headers) == is_bulk


@pytest.mark.parametrize("raw", [b"", b"Bulk", b"bulk ", b"batch", b"\xff" * 99])
def test_unknown_class(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match="`penstock-class` must be `online` or `bulk`") as caught:
        parse_is_bulk({CLASS: raw})
    assert len(caught.value.message) < 200


def test_the_last_of_repeated_headers_counts() -> None:
    headers = [(REPLY_TOPIC, b"a"), (DEADLINE_MS, b"1"), (REPLY_TOPIC, b"b"), (DEADLINE_MS, b"2")]
    assert parse_address(dict(headers)).topic == "b"
    assert parse_deadline_ms(dict(headers)) == 2


def test_reply_echoes_what_its_client_needs() -> None:
    headers = [*request_headers(b"id", "replies", 3, 9), ("traceparent", b"00-a-b-01"), ("other", b"x")]
    assert parse_address(dict(headers)).headers() == [(CORRELATION_ID, b"id"), ("traceparent", b"00-a-b-01")]
    assert parse_address({REPLY_TOPIC: b"replies"}).headers() == []


@given(st.binary(min_size=16, max_size=16), st.integers(1, 1000))
def test_partition_is_one_of_the_topics(key: bytes, num_partitions: int) -> None:
    assert 0 <= partition_for(key, num_partitions) < num_partitions


def test_topics() -> None:
    assert request_topic("bge-small") == "penstock.requests.bge-small"
    assert request_topic("org/model v2") == "penstock.requests.org-model-v2"
    assert dead_letter_topic("t") == "t.dead-letter"
    assert bulk_topic("t") == "t.bulk"
    assert REPLY_TOPIC_PATTERN.startswith(r"penstock\.replies")
