"""Records of chunks on their way: what of them finishes their record, and what the output topic refuses."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from hypothesis import given
from hypothesis import strategies as st

from penstock.worker.enrichment.chunk_bounds import ChunkBounds
from penstock.worker.enrichment.output_delivery import OutputDelivery
from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.replies.delivery import Delivery
from penstock.worker.replies.outlet import AnswerDropped, OutAnswer
from penstock.worker.requests.record import PendingRecord
from tests.worker.enrichment.test_chunk_records import Log, Reader, record_of

OUTCOMES = st.sampled_from([None, MessageSizeTooLargeError(), AnswerDropped()])


class Desk:
    """A delivery of outputs whose outlet keeps what it is given; the test ends it."""

    def __init__(self) -> None:
        self.sent: dict[str, list[OutAnswer]] = {}
        self.finished: list[int] = []
        self.outcomes: Counter[str] = Counter()
        self.held = Backpressure(8)
        self.arrived = asyncio.Event()
        metrics: Any = SimpleNamespace(count=lambda *_: None, count_route=self._count, show_route_age=lambda *_: None)
        delivery = Delivery(self, self.held, self._finish, lambda _: None, lambda *_: None, "group", 0)
        self.outputs = OutputDelivery(
            self, self.held, self._finish, lambda record: record.epoch == 0, metrics, delivery
        )
        self.outputs.add_chunks("out", ChunkBounds(Reader(Log())))

    def put(self, topic: str, partition: int | None, records: Sequence[OutAnswer]) -> None:
        self.sent.setdefault(topic, []).extend(records)
        self.arrived.set()

    async def partitions(self, topic: str) -> int:
        return 1

    def _finish(self, records: Sequence[PendingRecord]) -> None:
        self.finished += [record.original.offset for record in records]
        self.arrived.set()

    def _count(self, topic: str, outcome: str, count: int) -> None:
        self.outcomes[outcome] += count

    async def send(self, record: PendingRecord, num_chunks: int) -> list[OutAnswer]:
        chunks = [b"chunk"] * num_chunks
        self.outputs.send([self.outputs.output(record, "out", None, [], "ok", chunks)])
        await self.arrived.wait()
        return self.sent.pop("out", [])


def end(records: Sequence[OutAnswer], error: KafkaError | None) -> None:
    records[0].done(records, error)


@given(st.lists(OUTCOMES, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_a_record_is_finished_with_its_last_chunk_and_has_one_dead_letter_at_most(
    outcomes: list[KafkaError | None], random: Any
) -> None:
    async def play() -> Desk:
        desk = Desk()
        parts = await desk.send(record_of(b"key", 3), len(outcomes))
        assert desk.held.reply_bytes > 5 * len(parts)
        ends = list(zip(parts, outcomes, strict=True))
        random.shuffle(ends)
        for part, outcome in ends:
            assert desk.finished == []
            end([part], outcome)
        return desk

    desk = asyncio.run(play())
    letters = desk.sent.pop("in.dead-letter", [])
    is_refused = any(isinstance(one, MessageSizeTooLargeError) for one in outcomes)
    assert len(letters) == is_refused
    if letters:
        assert desk.finished == []
        end(letters, None)
    assert desk.finished == [3]
    assert desk.held.reply_bytes == 0
    assert desk.outcomes["invalid_request"] == is_refused
    assert desk.outcomes["ok"] <= 1 - is_refused
    assert desk.outcomes["ok"] == 1 or any(outcomes)


async def test_a_record_of_a_partition_that_is_gone_is_let_go_and_not_sent() -> None:
    desk, record = Desk(), record_of(b"key", 3)
    record.epoch = 7
    assert await desk.send(record, 2) == []
    assert (desk.finished, desk.held.reply_bytes, desk.outcomes) == ([3], 0, Counter())
