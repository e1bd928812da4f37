"""The order of delivery as a list of events, with a fake outbox: produced, acknowledged, finished."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import msgpack
import numpy as np
import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    KafkaError,
    MessageSizeTooLargeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
)
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from penstock.engine.types import ModelInfo
from penstock.producer.errors import BackendError, BadTokenId, Expired, InvalidRequest, Overloaded, PenstockError
from penstock.producer.transport.outbox import OutRecord
from penstock.producer.wire.headers import ReplyAddress
from penstock.producer.wire.joint_letters import decode_letter_records, is_joint
from penstock.scheduler import Cause
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.fetching.group import client_id
from penstock.worker.kafka.kafka_record import NO_TOPIC_ID
from penstock.worker.kafka.progress.offsets import OffsetTracker, PartitionProgress
from penstock.worker.replies import dead_letters
from penstock.worker.replies.delivery import Delivery
from penstock.worker.replies.outlet import AnswerDropped
from penstock.worker.replies.reply import encode_replies
from penstock.worker.requests.deadline_errors import deadline_error
from penstock.worker.requests.record import PendingRecord
from penstock.worker.requests.request import Rejection
from penstock.worker.requests.sequence_block import SequenceBlock

ADDRESS = ReplyAddress("penstock.replies", 2, b"id", b"trace")
DEAD_LETTERS = "penstock.requests.tiny.dead-letter"
MakeSequences = Callable[..., list[SequenceBlock]]
MakeRecord = Callable[..., Any]


def key_of(record: Any, topic_id: bytes = NO_TOPIC_ID) -> bytes:
    return PendingRecord(record, (record.topic, record.partition), False, topic_id).reply_key


class Desk:
    """A delivery whose outbox records what it is given; the test acknowledges."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.reply_s: list[float] = []
        self.outcomes: Counter[str] = Counter()
        self.held = Backpressure(8)
        self.sent: list[tuple[str, int | None, OutRecord]] = []
        self.delivery = self.deliver_to(self.finish)

    def finish(self, records: Sequence[PendingRecord]) -> None:
        self.events += [f"finished {record.original.offset}" for record in records]

    def deliver_to(self, acknowledged: Callable[[Sequence[PendingRecord]], None]) -> Delivery:
        return Delivery(self, self.held, acknowledged, self.reply_s.append, self.count, "penstock.tiny", 3)

    def count(self, outcome: str, records: int) -> None:
        self.outcomes[outcome] += records

    def put(self, topic: str, partition: int | None, records: Sequence[OutRecord]) -> None:
        for record in records:
            self.events.append(f"produced to {topic}")
            self.sent.append((topic, partition, record))

    def acknowledge_all(self) -> None:
        """As one batch, of records that share their `done`."""
        sent = [record for _, _, record in self.sent]
        sent[0].done(sent, None)

    def acknowledge(self, index: int, error: KafkaError | None = None) -> None:
        self.events.append(f"acknowledged {index}" if error is None else f"refused {index}")
        record = self.sent[index][2]
        record.done([record], error)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def answer(desk: Desk, info: ModelInfo, sequence: SequenceBlock) -> None:
    sequence.settle([np.zeros(4, np.float32)])
    desk.delivery.reply([sequence.request], encode_replies([sequence.request], info, None, 0.0))


def reject(desk: Desk, record: Any, address: ReplyAddress | None, error: PenstockError) -> None:
    pending = PendingRecord(record, (record.topic, record.partition), from_bulk_topic=False)
    desk.delivery.reject([Rejection(pending, address, error)])


def test_a_record_is_finished_when_its_reply_is_acknowledged(
    desk: Desk, info: ModelInfo, make_sequences: MakeSequences
) -> None:
    [sequence] = make_sequences([1])
    answer(desk, info, sequence)
    assert desk.events == ["produced to penstock.replies"]
    desk.acknowledge(0)
    assert desk.events == ["produced to penstock.replies", "acknowledged 0", "finished 0"]
    (reply_s,) = desk.reply_s
    assert 0 < reply_s < 10
    assert desk.outcomes == {"ok": 1}


def test_records_that_share_an_error_are_told_each_in_its_form(desk: Desk, make_record: MakeRecord) -> None:
    error, of_json = Overloaded("The queue is too long."), replace(ADDRESS, is_json=True)
    records = [make_record(offset=offset) for offset in range(4)]
    pending = [PendingRecord(record, (record.topic, record.partition), from_bulk_topic=False) for record in records]
    addresses = [ADDRESS, of_json, of_json, ADDRESS]
    desk.delivery.reject([Rejection(one, address, error) for one, address in zip(pending, addresses, strict=True)])
    told = {}
    for _, _, record in desk.sent:
        content_type = dict(record.headers).get("content-type")
        value = record.value or b""
        told[record.key] = json.loads(value) if content_type == b"application/json" else msgpack.unpackb(value)
    expected = {"v": 1, "ok": False, "error": {"code": "overloaded", "message": error.message, "retriable": True}}
    assert [told[one.reply_key] for one in pending] == [expected] * 4


def test_commits_follow_acknowledgements_and_stop_at_the_first_that_is_missing(
    info: ModelInfo, make_sequences: MakeSequences
) -> None:
    desk, offsets = Desk(), OffsetTracker()
    source = TopicPartition("penstock.requests.tiny", 0)
    desk.delivery = desk.deliver_to(
        lambda records: offsets.finish(source, [record.original.offset for record in records])
    )
    sequences = [make_sequences([n])[0] for n in range(3)]
    for sequence in sequences:
        offsets.start(source, [sequence.request.record.original.offset])
        answer(desk, info, sequence)

    def committable_after(index: int) -> dict[Any, PartitionProgress]:
        desk.acknowledge(index)
        return offsets.take_committable()

    assert offsets.take_committable() == {}
    commits = [
        {source: PartitionProgress(0, frozenset({2}))},
        {source: PartitionProgress(1, frozenset({2}))},
        {source: PartitionProgress(3)},
    ]
    assert [committable_after(index) for index in (2, 0, 1)] == commits


def test_a_rejection_is_finished_when_both_its_reply_and_its_dead_letter_are_acknowledged(
    desk: Desk, make_record: MakeRecord
) -> None:
    reject(desk, make_record(b"bad", offset=7), ADDRESS, InvalidRequest("no good"))
    desk.acknowledge(1)
    desk.acknowledge(0)
    assert desk.events == [
        "produced to penstock.replies",
        f"produced to {DEAD_LETTERS}",
        "acknowledged 1",
        "acknowledged 0",
        "finished 7",
    ]


def test_a_rejection_without_an_address_is_a_dead_letter(desk: Desk, make_record: MakeRecord) -> None:
    reject(desk, make_record(b"bad", offset=7), None, InvalidRequest("no reply topic"))
    desk.acknowledge(0)
    assert desk.events == [f"produced to {DEAD_LETTERS}", "acknowledged 0", "finished 7"]


def test_a_retriable_error_is_answered_without_a_dead_letter(desk: Desk, make_record: MakeRecord) -> None:
    reject(desk, make_record(b"fine", offset=7), ADDRESS, Overloaded("later"))
    desk.acknowledge(0)
    assert desk.events == ["produced to penstock.replies", "acknowledged 0", "finished 7"]


def test_requests_that_are_late_together_are_logged_together_and_leave_no_dead_letter(
    desk: Desk, make_record: MakeRecord
) -> None:
    errors = [deadline_error(Cause.ARRIVED_LATE, late_s) for late_s in (0.5, 0.6, 0.501)]
    records = [
        PendingRecord(make_record(b"fine", offset=offset), ("penstock.requests.tiny", 0), False) for offset in range(3)
    ]
    with capture_logs() as logs:
        desk.delivery.reject([Rejection(record, ADDRESS, error) for record, error in zip(records, errors, strict=True)])
    assert [(entry["event"], entry["code"], entry["records"]) for entry in logs] == [("request_refused", "expired", 3)]
    values = [record.value or b"" for _, _, record in desk.sent]
    assert [b"500 ms" in value for value in values] == [True, False, True]
    assert values[0] is values[2]
    assert len({record.key for _, _, record in desk.sent}) == 3
    desk.acknowledge_all()
    assert desk.events == ["produced to penstock.replies"] * 3 + ["finished 0", "finished 1", "finished 2"]


def test_a_dead_letter_keeps_the_original_and_says_why(desk: Desk, make_record: MakeRecord) -> None:
    record = make_record(b"\x00bad", offset=7, partition=3, timestamp=1234, headers=[("x", b"1"), ("null", None)])
    reject(desk, record, ADDRESS, BadTokenId("too high"))
    topic, partition, letter = desk.sent[1]
    assert (topic, partition, letter.key, letter.value) == (DEAD_LETTERS, None, b"key", b"\x00bad")
    assert list(letter.headers) == [
        ("x", b"1"),
        ("null", None),
        ("penstock-error-code", b"bad_token_id"),
        ("penstock-error-message", b"too high"),
        ("penstock-error-type", b"penstock.producer.errors.BadTokenId"),
        ("penstock-error-attempts", b"1"),
        ("penstock-source", b"penstock.requests.tiny-3-7"),
        ("penstock-source-topic-id", b"A" * 22),
        ("penstock-source-timestamp-ms", b"1234"),
        ("__dlq.errors.topic", b"penstock.requests.tiny"),
        ("__dlq.errors.partition", b"3"),
        ("__dlq.errors.offset", b"7"),
        ("__dlq.errors.delivery.count", b"1"),
        ("__dlq.errors.message", b"too high"),
        ("penstock-error-worker", client_id(3).encode()),
        ("__dlq.errors.group", b"penstock.tiny"),
    ]


def test_a_dead_letter_names_the_exception_behind_the_error(desk: Desk, make_record: MakeRecord) -> None:
    error = BackendError("the engine failed")
    error.__cause__ = MemoryError()
    reject(desk, make_record(), None, error)
    assert dict(desk.sent[0][2].headers)["penstock-error-type"] == b"builtins.MemoryError"


def test_an_error_reply_goes_where_and_as_the_request_asked(desk: Desk, make_record: MakeRecord) -> None:
    record = make_record(b"bad", offset=7)
    reject(desk, record, ADDRESS, BadTokenId("too high", {4: BadTokenId("Given: 9")}))
    topic, partition, reply = desk.sent[0]
    assert (topic, partition, reply.key) == ("penstock.replies", 2, key_of(record))
    assert dict(reply.headers) == {"kafka_correlationId": b"id", "traceparent": b"trace"}
    error = msgpack.unpackb(reply.value)["error"]
    assert error == {
        "code": "bad_token_id",
        "message": "too high",
        "retriable": False,
        "rows": [[4, "bad_token_id", "Given: 9"]],
    }


def test_a_reply_that_cannot_be_delivered_leaves_its_request_as_a_dead_letter(
    desk: Desk, info: ModelInfo, make_sequences: MakeSequences
) -> None:
    [sequence] = make_sequences([1])
    answer(desk, info, sequence)
    with capture_logs() as logs:
        desk.acknowledge(0, UnknownTopicOrPartitionError("no partition 2"))
    assert [(entry["event"], entry["records"]) for entry in logs] == [("reply_undeliverable", 1)]
    desk.acknowledge(1)
    assert desk.events[1:] == ["refused 0", f"produced to {DEAD_LETTERS}", "acknowledged 1", "finished 0"]
    assert desk.outcomes == {"backend": 1}


def test_what_is_dropped_leaves_without_an_outcome(
    desk: Desk, info: ModelInfo, make_sequences: MakeSequences, make_record: MakeRecord
) -> None:
    """Exactly-once delivery drops the answers of a partition that is given up: its next owner makes them again."""
    [sequence] = make_sequences([1])
    answer(desk, info, sequence)
    reject(desk, make_record(offset=1), ADDRESS, Expired())
    reject(desk, make_record(offset=2), ADDRESS, BadTokenId("no"))
    with capture_logs() as logs:
        for index in range(4):
            desk.acknowledge(index, AnswerDropped())
    assert desk.events[-7:] == [
        *("refused 0", "finished 0", "refused 1", "finished 1", "refused 2", "refused 3", "finished 2")
    ]
    assert (desk.outcomes, desk.reply_s, logs, len(desk.sent)) == ({}, [], [], 4)
    assert not any(desk.delivery.dead_letters.values())
    assert desk.held.reply_bytes == 0


def test_a_late_request_whose_error_cannot_be_delivered_is_kept_as_a_dead_letter(
    desk: Desk, make_record: MakeRecord
) -> None:
    reject(desk, make_record(b"late", offset=7), ADDRESS, Expired("too late"))
    desk.acknowledge(0, UnknownTopicOrPartitionError("no such partition"))
    assert desk.events[2:] == [f"produced to {DEAD_LETTERS}"]
    desk.acknowledge(1)
    assert desk.events[-1] == "finished 7"


def test_a_dead_letter_too_large_with_its_reasons_is_kept_without_its_value(
    desk: Desk, make_record: MakeRecord
) -> None:
    reject(desk, make_record(b"x" * 100, offset=7), None, InvalidRequest("no good"))
    desk.acknowledge(0, MessageSizeTooLargeError("just too large"))
    desk.acknowledge(1)
    assert desk.events[-1] == "finished 7"
    assert desk.sent[1][2].value == b""
    assert ("penstock-value-left-out-bytes", b"100") in desk.sent[1][2].headers
    assert ("penstock-value-left-out-sha256", sha256(b"x" * 100).hexdigest().encode()) in desk.sent[1][2].headers
    assert desk.sent[1][2].key == b"key"


def test_a_value_that_no_broker_would_take_is_never_put(desk: Desk, make_record: MakeRecord) -> None:
    """A record of 150 MB of zeros comes as 150 kB; sent again as it is, it would end the connection."""
    value = bytes(9 * 1024 * 1024)
    with capture_logs() as logs:
        reject(desk, make_record(value, offset=7, headers=[("x", b"1")]), None, InvalidRequest("no good"))
        [(_, _, letter)] = desk.sent
        assert logs[-1]["event"] == "request_refused"  # the letter is not logged before the broker has it
        desk.acknowledge(0)
    assert (letter.key, letter.value, letter.headers[0]) == (b"key", b"", ("x", b"1"))
    assert ("penstock-value-left-out-bytes", b"%d" % len(value)) in letter.headers
    assert (logs[-1]["event"], logs[-1]["left_out"]) == ("dead_letter_kept_in_part", "value")
    assert desk.events[-1] == "finished 7"


@pytest.mark.parametrize("part", ["key", "headers"])
def test_a_key_or_headers_that_no_broker_would_take_are_never_put(
    desk: Desk, make_record: MakeRecord, part: str
) -> None:
    huge = bytes(9 * 1024 * 1024)
    parts: dict[str, Any] = {"key": huge} if part == "key" else {"headers": [("x", huge), ("y", None)]}
    record = make_record(b"bad", offset=7, **parts)
    reject(desk, record, None, InvalidRequest("no good"))
    [(_, _, letter)] = desk.sent
    assert (letter.key, letter.value) == (key_of(record), b"")
    assert sum(len(name) + len(value) for name, value in letter.headers) < 1024


@pytest.mark.parametrize("value", [None, b"x" * 100])
def test_headers_too_large_for_the_broker_are_left_out_last(
    desk: Desk, make_record: MakeRecord, value: bytes | None
) -> None:
    record = make_record(value, offset=7, headers=[("x", b"1" * 1000), ("null", None)])
    reject(desk, record, None, InvalidRequest("no good"))
    for index in range(len(desk.sent) + (value is not None)):
        desk.acknowledge(index, MessageSizeTooLargeError("too large"))
    _, _, letter = desk.sent[-1]
    assert letter.value == (None if value is None else b"")
    notes = {"penstock-headers-left-out-bytes": b"1005", "penstock-key-left-out-bytes": b"3"}
    if value is not None:
        notes["penstock-value-left-out-bytes"] = b"100"
        notes["penstock-value-left-out-sha256"] = sha256(value).hexdigest().encode()
    assert dict(letter.headers) == notes | {
        "penstock-error-code": b"invalid_request",
        "penstock-error-message": b"no good",
        "penstock-error-type": b"penstock.producer.errors.InvalidRequest",
        "penstock-error-attempts": b"1",
        "penstock-error-worker": client_id(3).encode(),
        "penstock-source": b"penstock.requests.tiny-0-7",
        "penstock-source-topic-id": b"A" * 22,
        "penstock-source-timestamp-ms": b"0",
        "__dlq.errors.topic": b"penstock.requests.tiny",
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"7",
        "__dlq.errors.group": b"penstock.tiny",
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.message": b"no good",
    }
    assert "finished 7" not in desk.events
    desk.acknowledge(len(desk.sent) - 1)
    assert desk.events[-1] == "finished 7"


def test_a_record_whose_smallest_letter_is_refused_for_its_size_is_finished_and_the_loss_logged(
    desk: Desk, make_record: MakeRecord
) -> None:
    with capture_logs() as logs:
        reject(desk, make_record(b"bad", offset=7, partition=3), None, InvalidRequest("no good"))
        for index in range(3):
            assert "finished 7" not in desk.events
            desk.acknowledge(index, MessageSizeTooLargeError("too large"))
    assert desk.events[-1] == "finished 7"
    [lost] = [entry for entry in logs if entry["log_level"] in ("warning", "error")]
    assert lost["event"] == "dead_letter_lost"
    assert (lost["topic"], lost["partition"], lost["offset"]) == ("penstock.requests.tiny", 3, 7)
    assert desk.delivery.dead_letters == {"kept": 0, "kept_in_part": 0, "lost": 1}


async def test_a_letter_whose_topic_is_missing_is_tried_again(
    desk: Desk, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "_RETRY_S", 0.0)
    reject(desk, make_record(b"bad", offset=7), None, InvalidRequest("no good"))
    desk.acknowledge(0, UnknownTopicOrPartitionError("not yet"))
    await asyncio.sleep(0.001)
    assert "finished 7" not in desk.events
    assert desk.sent[1][2].value == b"bad"
    desk.acknowledge(1)
    assert desk.events[-1] == "finished 7"


async def test_letters_that_a_topic_refuses_for_a_minute_are_logged_and_given_up_until_it_takes_one(
    desk: Desk, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "_RETRY_S", 0.0)
    refused = TopicAuthorizationFailedError("not allowed")
    with capture_logs() as logs:
        reject(desk, make_record(b"bad", offset=7, partition=3), None, InvalidRequest("no good"))
        for attempt in range(13):
            assert "finished 7" not in desk.events
            desk.acknowledge(attempt, refused)
            await asyncio.sleep(0.001)
        assert desk.events[-1] == "finished 7"
        reject(desk, make_record(b"bad", offset=8), None, InvalidRequest("no good"))
        desk.acknowledge(13, refused)
        assert desk.events[-1] == "finished 8"
        reject(desk, make_record(b"bad", offset=9), None, InvalidRequest("no good"))
        desk.acknowledge(14)
        reject(desk, make_record(b"bad", offset=10), None, InvalidRequest("no good"))
        desk.acknowledge(15, refused)
        assert "finished 10" not in desk.events
    lost = [(entry["partition"], entry["offset"]) for entry in logs if entry["event"] == "dead_letter_lost"]
    assert lost == [(3, 7), (0, 8)]


async def test_letters_that_are_refused_together_are_logged_once_and_sent_again_together(
    desk: Desk, make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "_RETRY_S", 0.0)
    for offset in range(3):
        reject(desk, make_record(b"bad", offset=offset), None, InvalidRequest("no good"))
    letters = [record for _, _, record in desk.sent]
    with capture_logs() as logs:
        letters[0].done(letters, UnknownTopicOrPartitionError("not yet"))
        await asyncio.sleep(0.001)
    assert [(entry["event"], entry["letters"]) for entry in logs] == [("dead_letter_undeliverable", 3)]
    assert [record for _, _, record in desk.sent[3:]] == letters


def test_a_reply_that_the_broker_finds_too_large_is_answered_with_an_error(
    desk: Desk, info: ModelInfo, make_sequences: MakeSequences
) -> None:
    [sequence] = make_sequences([1])
    answer(desk, info, sequence)
    desk.acknowledge(0, MessageSizeTooLargeError("too large"))
    topic, _, reply = desk.sent[1]
    error = msgpack.unpackb(reply.value or b"")["error"]
    assert (topic, error["code"]) == ("penstock.replies", "invalid_request")
    assert "send fewer sequences" in error["message"]
    desk.acknowledge(1)
    assert "finished 0" not in desk.events
    desk.acknowledge(2)
    assert desk.events[-1] == "finished 0"
    assert desk.sent[2][0] == DEAD_LETTERS
    assert desk.held.reply_bytes == 0
    assert desk.outcomes == {"invalid_request": 1}


def test_answers_to_one_record_carry_one_key_and_answers_to_others_another(make_record: MakeRecord) -> None:
    """Another topic of the same name has another id. An offset of a log that was truncated has another timestamp."""
    places = itertools.product((0, 1), (0, 1), (5, 6), (NO_TOPIC_ID, b"0123456789abcdef"))
    keys = [
        key_of(make_record(partition=partition, offset=offset, timestamp=timestamp), topic_id)
        for partition, offset, timestamp, topic_id in places
    ]
    assert len(set(keys)) == 16
    assert {len(key) for key in keys} == {16}
    assert key_of(make_record(b"another value", partition=0, offset=0, timestamp=5)) == keys[0]


def test_the_key_of_an_answer_is_that_of_the_wire_format(make_record: MakeRecord) -> None:
    record = make_record(offset=1234, partition=3, timestamp=1_767_225_600_000)
    record.topic = "penstock.requests.m"
    assert key_of(record, bytes(range(16))).hex() == "81e153a5be672c5155f3b6576df30a92"


def test_an_answer_is_held_until_it_is_acknowledged_or_refused(
    desk: Desk, info: ModelInfo, make_sequences: MakeSequences, make_record: MakeRecord
) -> None:
    for sequences in make_sequences([1]), make_sequences([2]):
        answer(desk, info, sequences[0])
    reject(desk, make_record(b"bad", offset=7), ADDRESS, InvalidRequest("no good"))
    [first, second, error, _letter] = [len(record.value or b"") for _, _, record in desk.sent]
    assert desk.held.reply_bytes == first + second + error
    desk.acknowledge(1)
    assert desk.held.reply_bytes == first + error
    desk.acknowledge(0, UnknownTopicOrPartitionError("no partition 2"))
    desk.acknowledge(2, UnknownTopicOrPartitionError("no partition 2"))
    assert desk.held.reply_bytes == 0


async def test_an_answer_to_a_blocked_destination_becomes_a_dead_letter(
    desk: Desk, info: ModelInfo, make_sequences: MakeSequences, make_record: MakeRecord
) -> None:
    desk.held.destinations.is_blocked = lambda destination: True  # type: ignore[method-assign]
    [sequence] = make_sequences([1])
    answer(desk, info, sequence)
    reject(desk, make_record(b"bad", offset=7), ADDRESS, InvalidRequest("no good"))
    reject(desk, make_record(b"late", offset=8), ADDRESS, Expired("too late"))
    await asyncio.sleep(0)
    assert [topic for topic, _, _ in desk.sent] == [DEAD_LETTERS] * 3
    assert desk.held.reply_bytes == 0
    for index in (0, 1, 2):
        desk.acknowledge(index)
    assert sorted(event for event in desk.events if event.startswith("finished")) == [
        "finished 0",
        "finished 7",
        "finished 8",
    ]


def reject_all(desk: Desk, records: Sequence[Any], address: ReplyAddress | None = None) -> list[PendingRecord]:
    """Reject these with errors that differ in what they quote."""
    source = ("penstock.requests.tiny", 0)
    pending = [PendingRecord(record, source, from_bulk_topic=False) for record in records]
    desk.delivery.reject(
        [Rejection(one, address, InvalidRequest(f"no good. Given: {i}")) for i, one in enumerate(pending)]
    )
    return pending


def letters_of(desk: Desk) -> list[OutRecord]:
    return [record for topic, _, record in desk.sent if topic == DEAD_LETTERS]


def test_records_at_fault_that_follow_each_other_share_a_letter_and_an_event(
    desk: Desk, make_record: MakeRecord
) -> None:
    records = [make_record(b"", offset=offset, headers=[("x", b"1")]) for offset in (7, 8, 9, 11)]
    with capture_logs() as logs:
        reject_all(desk, records)
    shared, alone = letters_of(desk)
    assert [(entry["event"], entry["records"]) for entry in logs] == [("request_refused", 4)]
    assert is_joint(shared.headers)
    headers = dict(shared.headers)
    assert headers["penstock-source"] == b"penstock.requests.tiny-0-7"
    assert (headers["penstock-last-offset"], headers["penstock-records"]) == (b"9", b"3")
    assert headers["penstock-error-code"] == b"invalid_request"
    found = decode_letter_records(shared.value)
    assert [(one.offset, one.key, one.value, one.headers, one.message) for one in found] == [
        (7 + i, b"key", b"", [("x", b"1")], f"no good. Given: {i}") for i in range(3)
    ]
    assert not is_joint(alone.headers)
    desk.acknowledge(0)
    assert desk.events[-3:] == ["finished 7", "finished 8", "finished 9"]
    assert desk.delivery.dead_letters["kept"] == 3


def test_a_letter_of_several_that_the_broker_finds_too_large_becomes_a_letter_each(
    desk: Desk, make_record: MakeRecord
) -> None:
    reject_all(desk, [make_record(b"bad", offset=offset) for offset in (7, 8)])
    desk.acknowledge(0, MessageSizeTooLargeError("too large"))
    assert [letter.value for letter in letters_of(desk)[1:]] == [b"bad", b"bad"]
    desk.acknowledge(1)
    desk.acknowledge(2)
    assert [event for event in desk.events if event.startswith("finished")] == ["finished 7", "finished 8"]


def test_each_record_with_an_address_gets_its_own_error_reply_beside_the_shared_letter(
    desk: Desk, make_record: MakeRecord
) -> None:
    reject_all(desk, [make_record(b"bad", offset=offset) for offset in range(5)], ADDRESS)
    assert len(letters_of(desk)) == 1
    replies = [record for topic, _, record in desk.sent if topic == "penstock.replies"]
    assert len({reply.key for reply in replies}) == 5
    letters_of(desk)[0].done(letters_of(desk), None)
    assert not [event for event in desk.events if event.startswith("finished")]
    replies[0].done(replies, None)
    assert [event for event in desk.events if event.startswith("finished")] == [f"finished {n}" for n in range(5)]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2), st.sampled_from([0, 10, 40_000])), max_size=60),
)
def test_letters_hold_each_record_once_and_join_only_what_nothing_unanswered_is_between(
    given_records: list[tuple[int, int, int]],
) -> None:
    """By partition: the step to the next offset, and the size of the value."""
    desk, ends, records = Desk(), {0: 0, 1: 0, 2: 0}, []
    for partition, step, size in given_records:
        ends[partition] += step
        records.append(kafka_record(partition, ends[partition], bytes(size)))
    pending = [PendingRecord(one, (one.topic, one.partition), from_bulk_topic=False) for one in records]
    desk.delivery.reject([Rejection(one, None, InvalidRequest("no good")) for one in pending])
    found: list[tuple[bytes, int]] = []
    for letter in letters_of(desk):
        headers = dict(letter.headers)
        number, start = headers["__dlq.errors.partition"], int(headers["__dlq.errors.offset"])
        offsets = [one.offset for one in decode_letter_records(letter.value)] if is_joint(letter.headers) else [start]
        assert offsets == list(range(start, start + len(offsets)))
        found += [(number, offset) for offset in offsets]
    assert sorted(found) == sorted([(b"%d" % one.partition, one.offset) for one in records])
    for letter in letters_of(desk):
        letter.done([letter], None)
    assert len(desk.events) - len(desk.sent) == len(records)


def kafka_record(partition: int, offset: int, value: bytes) -> Any:
    topic = "penstock.requests.tiny"
    return SimpleNamespace(
        topic=topic, partition=partition, offset=offset, timestamp=0, key=None, value=value, headers=[]
    )


def test_dead_letters_of_a_flood_of_empty_records_are_a_small_multiple_of_its_bytes(desk: Desk) -> None:
    """Compressed by gzip, a record of them takes 1.4 bytes."""
    num_records = 0
    for first in range(0, 4096, 256):
        records = [kafka_record(0, offset, b"") for offset in range(first, first + 256)]
        reject_all(desk, records)
        num_records += len(records)
    written = sum(
        len(letter.value or b"") + sum(len(name) + len(value) for name, value in letter.headers)
        for letter in letters_of(desk)
    )
    assert written < 10 * num_records
