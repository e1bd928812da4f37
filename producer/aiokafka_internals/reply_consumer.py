"""A reader of one partition, without a group, that takes what each fetch brings as soon as it is there.

aiokafka (0.14) makes a task and a set of futures for each wait. To go, it needs what `fetcher.py` and
`fetch_messages.py` say.
"""

from penstock.producer.aiokafka_internals.bounded_fetch import BoundedConsumer
from penstock.producer.aiokafka_internals.fetcher import LeanFetcher
from penstock.producer.aiokafka_internals.topic_ids import TopicIds


class ReplyConsumer(BoundedConsumer):
    """It knows no ids: a topic that is created again is read on under its name."""

    async def start(self) -> None:
        """Connect. The first steps of the fetcher's tasks come after this."""
        await super().start()
        self._fetcher.__class__ = LeanFetcher
        self._fetcher.begin(TopicIds(), lambda source, asked, begins: None, pace_s=0.0)
