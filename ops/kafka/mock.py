"""librdkafka's mock cluster, for a demo without Java. It runs in this process and stores nothing on disk.

For development only. As observed with librdkafka 2.16 and aiokafka 0.14:

- Works: plain and idempotent producers, headers, compression, 5 MB records, one consumer in a group with committed
  offsets, pattern subscriptions, any number of consumers with assigned partitions, metadata.
- A topic is created on first use, always with 4 partitions; no configuration changes that.
- A partition keeps its latest 5 MB and silently drops older records, read or not.
- A consumer joins a group in 3 s. A second member of the group fails with InvalidRequestError. A consumer that joins
  within about 4 s after the last member left may wait for half a minute.
- Transactions are accepted, but aborted records are delivered to all consumers, and commit markers have no checksum: a
  consumer of the topic needs `check_crcs=False`. Exactly-once delivery cannot be shown.
- It chooses its ports. One that a user chooses forwards to it; clients connect to its own after their first answer.
- No administration: creating, deleting and describing topics or groups fails.
"""

import contextlib
import functools
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from penstock.ops.kafka.errors import BrokerFailed, BrokerMissing

START_TIMEOUT_S = 180.0
LOG_ERRORS_ONLY = 3  # syslog severity; the mock announces itself at 5 (notice)
_BYTES = 64 * 1024
_END_S = 2.0


class MockBroker:
    """One mock broker, which runs between entering and leaving the context."""

    def __init__(self, port: int | None = None) -> None:
        """`port`: of 127.0.0.1; None for a free one."""
        self._owner: Any = None  # the librdkafka client that owns the mock cluster
        self._port = port
        self._forwarder: _Forwarder | None = None
        self._bootstrap_servers = ""

    @property
    def bootstrap_servers(self) -> str:
        """`127.0.0.1:port`. Raises BrokerFailed outside the context, which chooses the port."""
        if not self._bootstrap_servers:
            raise BrokerFailed("The mock broker is not running; enter its context first.")
        return self._bootstrap_servers

    def __enter__(self) -> Self:
        """Raises BrokerMissing without confluent-kafka, BrokerFailed without an answer, or if the port is taken."""
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
        (node,) = nodes
        self._bootstrap_servers = f"{node.host}:{node.port}"
        if self._port is not None:
            self._forwarder = _Forwarder(self._port, node.port)
            self._bootstrap_servers = f"127.0.0.1:{self._port}"
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._owner = None  # the last reference to the client; librdkafka stops the cluster with it
        if self._forwarder is not None:
            self._forwarder.close()
            self._forwarder = None
        self._bootstrap_servers = ""


class _Forwarder:
    """Forwards from a port of 127.0.0.1, on threads, until `close`. For a few connections of small messages."""

    def __init__(self, port: int, to: int) -> None:
        """Listen. Raises BrokerFailed if the port is taken."""
        self._to = to
        try:
            self._listening = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise BrokerFailed(f"Port {port} of 127.0.0.1 cannot be used: {error.strerror}.") from error
        self._threads = [_started(self._accept)]

    def close(self) -> None:
        """Accept no more, and wait a moment for the connections, which end with the server behind."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # ends `accept`
        for thread in list(self._threads):
            thread.join(_END_S)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listening.accept()
            except OSError:
                return
            self._threads.append(_started(functools.partial(self._forward, caller)))

    def _forward(self, caller: socket.socket) -> None:
        with caller, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._to)) as server:
            back = _started(lambda: _copy(server, caller))
            _copy(caller, server)
            back.join()


def _started(run: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy one direction. Its end ends the other one."""
    with contextlib.suppress(OSError):
        while data := source.recv(_BYTES):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
