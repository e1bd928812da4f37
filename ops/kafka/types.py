"""What every local broker has in common, and how it fails.

BrokerError
├── BrokerMissing    something that is not installed: Java, Maven, confluent-kafka
└── BrokerFailed     everything is installed, yet the broker did not come up
"""

from types import TracebackType
from typing import Protocol, Self


class BrokerError(Exception):
    """A local broker could not be had. The message says what to do about it."""


class BrokerMissing(BrokerError):
    """A program or package that the broker needs is not installed."""


class BrokerFailed(BrokerError):
    """The broker or its installation failed; the message ends with the tail of its log."""


class Broker(Protocol):
    """A local Kafka for one machine: entering the context starts it, leaving it ends it and frees what it held."""

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for any Kafka client. Stays the same for the life of the object."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
