"""Interface and errors of the local brokers.

BrokerError
├── BrokerMissing    Java, Maven or confluent-kafka is not installed
└── BrokerFailed     the broker or its installation failed
"""

from types import TracebackType
from typing import Protocol, Self


class BrokerError(Exception):
    """A local broker is not available. The message has a remedy."""


class BrokerMissing(BrokerError):
    """A program or package that the broker needs is not installed."""


class BrokerFailed(BrokerError):
    """The broker or its installation failed; the message ends with the tail of its log."""


class Broker(Protocol):
    """A local Kafka. Entering the context starts it; leaving the context stops it and releases its resources."""

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for Kafka clients, constant for the life of the object."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
