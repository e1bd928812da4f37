"""Local Kafka for development and tests: a real broker from Maven's jars, and librdkafka's mock cluster."""

from penstock.ops.kafka.broker import FAST_START, FULL_SPEED, KafkaBroker
from penstock.ops.kafka.broker_cluster import BrokerCluster
from penstock.ops.kafka.errors import BrokerError, BrokerFailed, BrokerMissing
from penstock.ops.kafka.jars import kafka_missing
from penstock.ops.kafka.mock import MockBroker
from penstock.ops.kafka.registry import RegistryServer

__all__ = [
    "FAST_START",
    "FULL_SPEED",
    "BrokerCluster",
    "BrokerError",
    "BrokerFailed",
    "BrokerMissing",
    "KafkaBroker",
    "MockBroker",
    "RegistryServer",
    "kafka_missing",
]
