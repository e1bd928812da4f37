"""Local Kafka for development and tests: a real broker from Maven's jars, and librdkafka's mock cluster."""

from typing import Literal

from penstock.ops.kafka.broker import FAST_START, FULL_SPEED, KafkaBroker
from penstock.ops.kafka.broker_cluster import BrokerCluster
from penstock.ops.kafka.errors import BrokerError, BrokerFailed, BrokerMissing
from penstock.ops.kafka.jars import kafka_missing
from penstock.ops.kafka.mock import MockBroker

BrokerKind = Literal["kafka", "mock"]

__all__ = [
    "FAST_START",
    "FULL_SPEED",
    "BrokerCluster",
    "BrokerError",
    "BrokerFailed",
    "BrokerKind",
    "BrokerMissing",
    "KafkaBroker",
    "MockBroker",
    "kafka_missing",
    "open_broker",
]


def open_broker(kind: BrokerKind, port: int | None = None) -> KafkaBroker | MockBroker:
    """A broker to start: `with open_broker("mock") as broker: print(broker.bootstrap_servers)`.

    `port`: of 127.0.0.1; None for a free one.
    """
    if kind == "kafka":
        return KafkaBroker(port=port)
    if kind == "mock":
        return MockBroker(port)
    raise ValueError(f"kind must be 'kafka' or 'mock'. Given: {kind!r}")
