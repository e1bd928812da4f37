"""aiokafka's producer with several produce requests on their way to one broker.

aiokafka (0.14) sends a broker the next produce request after the answer to the last one, whatever partitions they are
for: a reply to one client waits until the broker has the reply to another. Each partition still has one batch underway,
so the records of a partition stay in order.
"""

from collections import Counter
from typing import Any

from penstock.producer.transport.failover_client import FailoverProducer

_MOST_REQUESTS = 3  # to one broker; what comes meanwhile shares the next one


class ConcurrentProducer(FailoverProducer):
    """Not for transactions, where aiokafka's order of requests matters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._sender._in_flight = _Underway()


class _Underway(Counter[Any]):
    """Number of requests underway by broker; in the place of aiokafka's set of brokers that take no further request."""

    def add(self, broker: Any) -> None:
        self[broker] += 1

    def remove(self, broker: Any) -> None:
        self[broker] -= 1

    def __contains__(self, broker: object) -> bool:
        return self[broker] >= _MOST_REQUESTS
