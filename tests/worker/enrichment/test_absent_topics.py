"""Outputs whose topic is gone wait for it, in the order of their keys."""

import asyncio
from collections.abc import Sequence

from aiokafka.errors import KafkaError, UnknownTopicOrPartitionError
from structlog.testing import capture_logs

from penstock.worker.enrichment.absent_topics import AbsentTopics
from penstock.worker.enrichment.output import Output
from penstock.worker.replies.outlet import AnswerDropped, OutAnswer
from penstock.worker.requests.record import PendingRecord
from tests.worker.conftest import FakeRecord

GONE = UnknownTopicOrPartitionError("out does not exist")


class Topics:
    """An outlet, and what arrives there."""

    def __init__(self) -> None:
        self.is_there = False
        self.sent: list[list[int]] = []
        self.dropped: list[int] = []
        self.lost: set[int] = set()  # partitions
        self.absent = AbsentTopics(self, lambda record: record.source[1] not in self.lost, retry_s=0)

    def put(self, topic: str, partition: int | None, records: Sequence[OutAnswer]) -> None:
        self.sent.append([record.origin.original.offset for record in records])

    async def partitions(self, topic: str) -> int:
        if not self.is_there:
            raise GONE
        return 1

    def done(self, outputs: Sequence[Output], error: KafkaError | None) -> None:
        assert isinstance(error, AnswerDropped)
        self.dropped += [output.origin.original.offset for output in outputs]

    def output(self, offset: int, topic: str = "out", partition: int = 0) -> Output:
        record = PendingRecord(FakeRecord(offset=offset, topic="in"), ("in", partition), from_bulk_topic=False)
        return Output(b"k", b"", [], self.done, record, topic, "ok")


async def turn() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_outputs_of_a_topic_that_is_gone_wait_and_leave_in_their_order() -> None:
    topics = Topics()
    with capture_logs() as logs:
        topics.absent.put("out", [topics.output(0)])
        topics.absent.refused([topics.output(1), topics.output(4)], GONE)
        topics.absent.put("out", [topics.output(5)])
        topics.absent.put("other", [topics.output(6, "other")])
        topics.absent.refused([topics.output(2), topics.output(3)], GONE)  # they were sent before the first was refused
        await turn()
        assert topics.sent == [[0], [6]]
        assert topics.absent.counts() == {("out",): 5}
        topics.is_there = True
        await turn()
        assert topics.sent == [[0], [6], [1, 2, 3, 4, 5]]
        topics.absent.refused([topics.output(5)], GONE)  # again
        await turn()
        assert topics.sent[3:] == [[5]]
        topics.absent.acknowledged([topics.output(6, "other")])
        topics.absent.acknowledged([topics.output(5)])
    assert topics.absent.counts() == {}
    assert [(one["event"], one["log_level"]) for one in logs] == [
        ("output_topic_away", "error"),
        ("output_topic_back", "info"),
    ]


async def test_what_waits_of_a_partition_that_was_lost_is_left_to_its_next_owner() -> None:
    topics = Topics()
    topics.absent.refused([topics.output(1), topics.output(2, partition=1)], GONE)
    topics.lost = {1}
    topics.is_there = True
    await turn()
    assert (topics.sent, topics.dropped) == ([[1]], [2])


async def test_what_waits_of_a_partition_that_was_lost_is_let_go_while_its_topic_is_still_gone() -> None:
    topics = Topics()
    topics.absent.refused([topics.output(1), topics.output(2, partition=1)], GONE)
    topics.lost = {1}
    await turn()
    assert (topics.sent, topics.dropped) == ([], [2])
    assert topics.absent.counts() == {("out",): 1}
    topics.lost = {0, 1}
    await turn()
    topics.absent.put("out", [topics.output(3, partition=2)])
    topics.is_there = True
    await turn()
    assert (topics.sent, topics.dropped) == ([[3]], [2, 1])
