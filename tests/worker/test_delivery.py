"""The order of delivery as a list of events, with a stand-in for the outbox: produced, acknowledged, finished."""

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, UnknownTopicOrPartitionError

from penstock.engine.types import ModelInfo
from penstock.producer.errors import BadTokenId, InvalidRequest
from penstock.producer.headers import ReplyAddress
from penstock.producer.outbox import OutRecord
from penstock.worker.delivery import Delivery, reply_key
from penstock.worker.held import Held
from penstock.worker.inflight import Row
from penstock.worker.offsets import OffsetTracker
from penstock.worker.replies import make_reply

ADDRESS = ReplyAddress("penstock.replies", 2, b"id", b"trace")
DEAD_LETTERS = "penstock.requests.tiny.dead-letter"
MakeRows = Callable[..., list[Row]]
MakeRecord = Callable[..., Any]


class Desk:
    """A delivery whose outbox only writes down what it is given; the test acknowledges."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.held = Held(max_records=8)
        self.sent: list[tuple[str, int | None, OutRecord]] = []
        self.delivery = Delivery(self, self.held, lambda record: self.events.append(f"finished {record.offset}"))  # type: ignore[arg-type]  # put is all of an Outbox that it uses

    def put(self, topic: str, partition: int | None, record: OutRecord) -> None:
        self.events.append(f"produced to {topic}")
        self.sent.append((topic, partition, record))

    def acknowledge(self, index: int, error: KafkaError | None = None) -> None:
        self.events.append(f"acknowledged {index}" if error is None else f"refused {index}")
        self.sent[index][2].done(error)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def answer(desk: Desk, info: ModelInfo, row: Row) -> None:
    row.settle(np.zeros(4, np.float32))
    desk.delivery.reply(row.owner, make_reply(row.owner, info))


def test_a_record_is_finished_when_its_reply_is_acknowledged(desk: Desk, info: ModelInfo, make_rows: MakeRows) -> None:
    [row] = make_rows([1])
    answer(desk, info, row)
    assert desk.events == ["produced to penstock.replies"]
    desk.acknowledge(0)
    assert desk.events == ["produced to penstock.replies", "acknowledged 0", "finished 0"]


def test_commits_follow_acknowledgements_and_stop_at_the_first_that_is_missing(
    info: ModelInfo, make_rows: MakeRows
) -> None:
    desk, offsets = Desk(), OffsetTracker()
    source = TopicPartition("penstock.requests.tiny", 0)
    desk.delivery = Delivery(desk, desk.held, lambda record: offsets.finish(source, record.offset))  # type: ignore[arg-type]  # as above
    rows = [make_rows([n])[0] for n in range(3)]
    for row in rows:
        offsets.start(source, row.owner.record.offset)
        answer(desk, info, row)

    def committable_after(index: int) -> dict[TopicPartition, int]:
        desk.acknowledge(index)
        return offsets.take_committable()

    assert offsets.take_committable() == {}
    assert [committable_after(index) for index in (2, 0, 1)] == [{}, {source: 1}, {source: 3}]


def test_a_refusal_is_finished_when_both_its_reply_and_its_dead_letter_are_acknowledged(
    desk: Desk, make_record: MakeRecord
) -> None:
    desk.delivery.refuse(make_record(b"bad", offset=7), ADDRESS, InvalidRequest("no good"))
    desk.acknowledge(1)
    desk.acknowledge(0)
    assert desk.events == [
        "produced to penstock.replies",
        f"produced to {DEAD_LETTERS}",
        "acknowledged 1",
        "acknowledged 0",
        "finished 7",
    ]


def test_a_refusal_nobody_can_be_told_of_is_a_dead_letter(desk: Desk, make_record: MakeRecord) -> None:
    desk.delivery.refuse(make_record(b"bad", offset=7), None, InvalidRequest("no reply topic"))
    desk.acknowledge(0)
    assert desk.events == [f"produced to {DEAD_LETTERS}", "acknowledged 0", "finished 7"]


def test_a_dead_letter_keeps_the_original_and_says_why(desk: Desk, make_record: MakeRecord) -> None:
    record = make_record(b"\x00bad", offset=7, partition=3, headers=[("x", b"1"), ("null", None)])
    desk.delivery.refuse(record, ADDRESS, BadTokenId("too high"))
    topic, partition, letter = desk.sent[1]
    assert (topic, partition, letter.key, letter.value) == (DEAD_LETTERS, None, b"key", b"\x00bad")
    assert list(letter.headers) == [
        ("x", b"1"),
        ("null", None),
        ("penstock-error-code", b"bad_token_id"),
        ("penstock-error-message", b"too high"),
        ("penstock-source", b"penstock.requests.tiny-3-7"),
    ]


def test_an_error_reply_goes_where_and_as_the_request_asked(desk: Desk, make_record: MakeRecord) -> None:
    record = make_record(b"bad", offset=7)
    desk.delivery.refuse(record, ADDRESS, BadTokenId("too high", {4: BadTokenId("Given: 9")}))
    topic, partition, reply = desk.sent[0]
    assert (topic, partition, reply.key) == ("penstock.replies", 2, reply_key(record))
    assert dict(reply.headers) == {"kafka_correlationId": b"id", "traceparent": b"trace"}
    error = msgpack.unpackb(reply.value)["error"]
    assert error == {
        "code": "bad_token_id",
        "message": "too high",
        "retriable": False,
        "rows": [[4, "bad_token_id", "Given: 9"]],
    }


def test_a_reply_that_cannot_be_delivered_leaves_its_request_as_a_dead_letter(
    desk: Desk, info: ModelInfo, make_rows: MakeRows
) -> None:
    [row] = make_rows([1])
    answer(desk, info, row)
    desk.acknowledge(0, UnknownTopicOrPartitionError("no partition 2"))
    desk.acknowledge(1)
    assert desk.events[1:] == ["refused 0", f"produced to {DEAD_LETTERS}", "acknowledged 1", "finished 0"]


def test_a_dead_letter_too_large_with_its_reasons_is_kept_without_its_value(
    desk: Desk, make_record: MakeRecord
) -> None:
    desk.delivery.refuse(make_record(b"x" * 100, offset=7), None, InvalidRequest("no good"))
    desk.acknowledge(0, MessageSizeTooLargeError("just too large"))
    desk.acknowledge(1)
    assert desk.events[-1] == "finished 7"
    assert desk.sent[1][2].value == b""
    assert ("penstock-value-left-out-bytes", b"100") in desk.sent[1][2].headers


def test_answers_to_one_record_carry_one_key_and_answers_to_others_another(make_record: MakeRecord) -> None:
    places = [(0, 0), (0, 1), (1, 0)]
    keys = [reply_key(make_record(partition=partition, offset=offset)) for partition, offset in places]
    assert len(set(keys)) == 3
    assert {len(key) for key in keys} == {16}
    assert reply_key(make_record(b"another value", partition=1, offset=0)) == keys[2]


def test_an_answer_is_held_until_it_is_acknowledged_or_refused(
    desk: Desk, info: ModelInfo, make_rows: MakeRows, make_record: MakeRecord
) -> None:
    for row in make_rows([1]), make_rows([2]):
        answer(desk, info, row[0])
    desk.delivery.refuse(make_record(b"bad", offset=7), ADDRESS, InvalidRequest("no good"))
    [first, second, error, _letter] = [len(record.value or b"") for _, _, record in desk.sent]
    assert desk.held.reply_bytes == first + second + error
    desk.acknowledge(1)
    assert desk.held.reply_bytes == first + error
    desk.acknowledge(0, UnknownTopicOrPartitionError("no partition 2"))
    desk.acknowledge(2, UnknownTopicOrPartitionError("no partition 2"))
    assert desk.held.reply_bytes == 0
