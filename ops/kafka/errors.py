"""Errors of the local brokers.

BrokerError
├── BrokerMissing    Java, Maven or confluent-kafka is not installed
└── BrokerFailed     the broker or its installation failed
"""


class BrokerError(Exception):
    """A local broker is not available. The message has a remedy."""


class BrokerMissing(BrokerError):
    """A program or package that the broker needs is not installed."""


class BrokerFailed(BrokerError):
    """The broker or its installation failed; the message ends with the tail of its log."""
