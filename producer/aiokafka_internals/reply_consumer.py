"""A reader of one partition, without a group, that takes what each fetch brings as soon as it is there.

aiokafka (0.14) makes a task and a set of futures for each wait, and of each record an object of eleven fields, which
takes longer than to parse it. To go, it needs what `fetcher.py` and `fetch_messages.py` say, and records as parsed.
"""

from typing import Any

from aiokafka.consumer.fetcher import FetchResult, PartitionRecords

from penstock.producer.aiokafka_internals.bounded_fetch import BoundedConsumer
from penstock.producer.aiokafka_internals.fetch_messages import FetchMessage
from penstock.producer.aiokafka_internals.fetcher import LeanFetcher
from penstock.producer.aiokafka_internals.topic_ids import TopicIds


class ReplyConsumer(BoundedConsumer):
    """It knows no ids: a topic that is created again is read on under its name.

    Its records have an offset, a key, a value and headers.
    """

    async def start(self) -> None:
        """Connect. The first steps of the fetcher's tasks come after this."""
        await super().start()
        self._fetcher.__class__ = _ReplyFetcher
        self._fetcher.begin(TopicIds(), lambda source, asked, begins: None, pace_s=0.0)


class _ReplyFetcher(LeanFetcher):
    async def _proc_fetch_request(self, assignment: Any, node_id: int, request: FetchMessage) -> bool:
        needs_wakeup = await super()._proc_fetch_request(assignment, node_id, request)
        for fetched in self._records.values():
            if isinstance(fetched, FetchResult) and fetched.has_more():
                fetched._partition_records.__class__ = _ParsedRecords
        return needs_wakeup


class _ParsedRecords(PartitionRecords):  # type: ignore[misc]  # aiokafka has no type information
    def _consumer_record(self, tp: Any, record: Any) -> Any:
        return record
