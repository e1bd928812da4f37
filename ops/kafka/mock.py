"""librdkafka's mock cluster, for a demo without Java. It lives in this process and forgets everything with it.

For development only. As seen with librdkafka 2.16 and aiokafka 0.14:

- Works: plain and idempotent producers, headers, compression, 5 MB records, one consumer in a group with committed
  offsets, pattern subscriptions, any number of consumers with assigned partitions, metadata.
- A topic appears on first use, always with 4 partitions; nothing in the configuration changes that.
- A partition keeps its latest 5 MB and silently drops what is older, whether or not anybody has read it.
- A consumer joins a group in 3 s. A second member of the group fails with InvalidRequestError, and a consumer that
  rejoins within about 4 s of the last one's leaving may wait for half a minute.
- Transactions are accepted, but aborted records are delivered to everybody, and the commit markers have no checksum,
  so that a consumer of that topic needs `check_crcs=False`. Exactly-once cannot be shown here.
- No administration: creating, deleting and describing topics or groups fails.
"""

from types import TracebackType
from typing import Any, Self

from penstock.ops.kafka.types import BrokerFailed, BrokerMissing

START_TIMEOUT_S = 10.0
LOG_ERRORS_ONLY = 3  # syslog severity; the mock announces itself at 5 (notice)


class MockBroker:
    """One mock broker, alive between entering and leaving the context."""

    def __init__(self) -> None:
        self._owner: Any = None  # the librdkafka client that the mock cluster belongs to
        self._bootstrap_servers = ""

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:port`. Raises BrokerFailed before the context is entered: the mock chooses its port then."""
        if not self._bootstrap_servers:
            raise BrokerFailed("The mock broker is not running; enter its context first.")
        return self._bootstrap_servers

    def __enter__(self) -> Self:
        """Raises BrokerMissing without confluent-kafka, BrokerFailed when the mock does not answer."""
        try:
            import confluent_kafka
        except ImportError as error:
            raise BrokerMissing(
                "The mock broker needs the package confluent-kafka: pip install 'penstock[demo]'"
            ) from error
        self._owner = confluent_kafka.Producer({"test.mock.num.brokers": 1, "log_level": LOG_ERRORS_ONLY})
        try:
            nodes = self._owner.list_topics(timeout=START_TIMEOUT_S).brokers.values()
        except confluent_kafka.KafkaException as error:
            self._owner = None
            raise BrokerFailed(f"librdkafka's mock cluster did not start: {error}") from error
        self._bootstrap_servers = ",".join(f"{node.host}:{node.port}" for node in nodes)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._owner = None  # librdkafka ends the cluster with its client, and the client with its last reference.
        self._bootstrap_servers = ""
