"""Partial replies: one underway for each sequence, with a key of its own, by an outbox of their own. A fake outbox."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from aiokafka.errors import KafkaError
from structlog.testing import capture_logs

from penstock.producer.transport.cluster import KafkaRefused
from penstock.producer.transport.outbox import OutRecord
from penstock.producer.wire.headers import CORRELATION_ID, PARTIAL, ReplyAddress
from penstock.producer.wire.messages import Options
from penstock.worker.replies import partial_replies as module
from penstock.worker.replies.partial_replies import PartialReplies
from penstock.worker.requests.sequence_block import SequenceBlock

MakeSequences = Callable[..., list[SequenceBlock]]


class FakeOutbox:
    """Keeps what it is given; the test acknowledges."""

    def __init__(self) -> None:
        self.connected = asyncio.Event()
        self.sent: list[tuple[str, int | None, OutRecord]] = []
        self.refusals: list[KafkaError] = []  # of the next attempts to connect
        self.stopped = False

    async def start(self) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        await self.connected.wait()

    def put(self, topic: str, partition: int | None, records: Sequence[OutRecord]) -> None:
        assert self.connected.is_set()
        self.sent += [(topic, partition, record) for record in records]

    async def stop(self, timeout_s: float) -> None:
        self.stopped = True

    def end(self, index: int, error: KafkaError | None = None) -> None:
        record = self.sent[index][2]
        record.done([record], error)

    @property
    def values(self) -> list[bytes | None]:
        return [record.value for _, _, record in self.sent]


class Desk:
    """Partial replies of numbers."""

    def __init__(self) -> None:
        self.outbox = FakeOutbox()
        outbox: Any = self.outbox
        self.partials = PartialReplies(outbox, lambda sequence, result: b"%d" % result[0])

    async def connect(self, sequence: SequenceBlock) -> None:
        self.emit(0, sequence)  # nothing is sent before the first connection
        self.outbox.connected.set()
        for _ in range(3):
            await asyncio.sleep(0)
        assert self.outbox.sent == []

    def emit(self, number: int, *sequences: SequenceBlock) -> None:
        self.partials.send(sequences, np.array([number], np.float32))


def streaming(make_sequences: MakeSequences, *ids: list[int], **fields: Any) -> list[SequenceBlock]:
    return make_sequences(*ids, options=Options(stream=True), task="generate", **fields)


async def test_the_next_partial_reply_waits_for_the_acknowledgement_of_the_last(make_sequences: MakeSequences) -> None:
    desk = Desk()
    [one, other] = streaming(make_sequences, [1], [2])
    await desk.connect(one)
    for number in (1, 2, 3):
        desk.emit(number, one)
    desk.emit(4, other)
    assert desk.outbox.values == [b"1", b"4"]
    desk.outbox.end(0)
    desk.emit(5, one)
    desk.emit(6, one, other)
    assert desk.outbox.values == [b"1", b"4", b"5"]
    desk.outbox.end(1, KafkaError("gone"))  # as if it were lost: the next one has all that came before
    desk.emit(7, one, other)
    assert desk.outbox.values == [b"1", b"4", b"5", b"7"]


async def test_it_names_its_request_and_sequence_and_has_another_key_than_the_reply(
    make_sequences: MakeSequences,
) -> None:
    desk = Desk()
    [first, second] = streaming(make_sequences, [1], [2])
    await desk.connect(first)
    desk.emit(1, first)
    desk.emit(2, second)
    desk.outbox.end(1)
    desk.emit(3, second)
    (topic, _, record), *_ = desk.outbox.sent[1:]
    assert topic == first.request.address.topic
    assert list(record.headers) == [(CORRELATION_ID, b"id"), (PARTIAL, b"1")]
    keys = [one.key for _, _, one in desk.outbox.sent]
    assert keys[1] == keys[2]  # the partial replies of a sequence share theirs
    assert len({first.request.record.reply_key, *keys}) == 3
    # Another worker that runs the record again gives the same ones.
    again = Desk()
    await again.connect(second)
    again.emit(9, second)
    assert again.outbox.sent[0][2].key == keys[1]


async def test_a_destination_without_a_leader_gets_a_bounded_number_and_stops_no_other(
    make_sequences: MakeSequences,
) -> None:
    desk = Desk()
    dead = [streaming(make_sequences, [1])[0] for _ in range(300)]
    (fine,) = streaming(make_sequences, [1])
    fine.request.address = ReplyAddress("elsewhere", 0, b"id", None)
    await desk.connect(fine)
    for one in dead:
        desk.emit(1, one)
    assert len(desk.outbox.sent) == 256
    desk.emit(2, fine)
    assert desk.outbox.sent[-1][0] == "elsewhere"
    desk.outbox.end(0)
    desk.emit(3, dead[-1])
    assert len(desk.outbox.sent) == 258


async def test_a_connection_that_kafka_refuses_is_tried_again_and_fails_no_worker(
    make_sequences: MakeSequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker's privileges, or the source of its tokens, may be away just when the first request streams."""
    monkeypatch.setattr(module, "_RETRY_S", 0.0)
    failures: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    desk = Desk()
    desk.outbox.refusals = [KafkaRefused("Kafka denies an idempotent producer."), KafkaRefused("It needs a token.")]
    desk.outbox.connected.set()
    (one,) = streaming(make_sequences, [1])
    with capture_logs() as logs:
        for _ in range(20):
            desk.emit(1, one)
            await asyncio.sleep(0)
    assert (desk.outbox.values, failures) == ([b"1"], [])
    assert [event["event"] for event in logs] == ["partial_replies_unavailable"] * 2


async def test_without_an_outbox_none_is_sent(make_sequences: MakeSequences) -> None:
    partials = PartialReplies(None, lambda sequence, result: b"")
    partials.send(streaming(make_sequences, [1]), np.zeros(1, np.float32))
    await partials.stop()


async def test_stopping_before_a_connection_is_made_ends_the_attempt(make_sequences: MakeSequences) -> None:
    desk = Desk()
    desk.emit(1, *streaming(make_sequences, [1]))
    await desk.partials.stop()
    assert desk.outbox.stopped
    assert desk.outbox.sent == []
