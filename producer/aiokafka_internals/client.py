"""aiokafka's client, which leaves a broker that hangs as soon as the cluster has replaced it.

The connections of a broker that hangs stay open. aiokafka (0.14) waits 40 s (`request_timeout_ms`) for each answer, and
connects to one broker at a time. The cluster replaces such a broker within its session timeout (9 s): others lead its
partitions, and it is missing in their metadata. Its connections are closed then, so that what waits on them is retried
with the new leader or coordinator. A batch keeps its sequence number, so a broker that has written it writes it once.

To go, it needs a client that connects to several brokers at a time, and closes its connections to those that metadata
no longer names.
"""

import asyncio
import contextlib
import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

import structlog
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection, CloseReason
from aiokafka.errors import CoordinatorNotAvailableError, KafkaConnectionError, KafkaError, RequestTimedOutError
from aiokafka.protocol.metadata import MetadataRequest

_SILENT_S = 3.0  # since a request was sent
_LOOK_S = 1.0
_ANSWER_S = 2.0  # to a request for metadata, of which a broker needs no other
_BOOTSTRAP_MS = 5000  # for each answer of the first broker: others may be there
_CONNECT_S = 15.0  # with TLS and SASL; a command that makes a token may take 10 s
_OWN_GROUP = "failover"  # aiokafka's groups of connections; an answer on another may wait for those before it

log = structlog.get_logger("penstock.kafka")


class BrokerReplaced(KafkaError):  # type: ignore[misc]  # aiokafka has no type information
    """The cause of errors of the requests that waited for a broker."""


class FailoverClient(AIOKafkaClient):  # type: ignore[misc]  # as above
    """Used on one event loop, by one producer or consumer or more."""

    def __init__(self, made: AIOKafkaClient, clock: Callable[[], float] = time.monotonic) -> None:
        """Take the place of a client that aiokafka has made, and not connected yet."""
        self.__dict__.update(vars(made))
        self._clock = clock
        self._connecting: defaultdict[Any, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._num_failed: defaultdict[Any, int] = defaultdict(int)  # attempts to connect that failed
        self._attempts: dict[asyncio.Timeout, tuple[Any, float]] = {}  # to connect: broker, and since when
        self._unanswered: dict[tuple[AIOKafkaConnection, int], float] = {}  # first requests -> when they were seen
        self._watching: asyncio.Task[None] | None = None

    async def bootstrap(self) -> None:
        """Connect to the first server that answers. Raises KafkaConnectionError."""
        self._request_timeout_ms, patience_ms = _BOOTSTRAP_MS, self._request_timeout_ms
        try:
            await super().bootstrap()
        finally:
            self._request_timeout_ms = patience_ms
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Disconnect."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
            self._watching = None
        await super().close()

    async def send(self, node_id: Any, request: Any, *, group: Any = ConnectionGroup.DEFAULT) -> Any:
        """As aiokafka's. A broker that is left counts as one that did not answer in time."""
        try:
            return await super().send(node_id, request, group=group)
        except KafkaConnectionError as error:
            if isinstance(error.__cause__, BrokerReplaced):
                raise RequestTimedOutError from error
            raise

    async def coordinator_lookup(self, coordinator_type: Any, coordinator_key: str) -> Any:
        """As aiokafka's. A producer that is told of a lost connection here would end its sender, and a traceback."""
        try:
            return await super().coordinator_lookup(coordinator_type, coordinator_key)
        except KafkaConnectionError as error:
            raise CoordinatorNotAvailableError from error

    def forget(self, topic: str) -> None:
        """Ask for a topic no more; aiokafka asks for every name it has met, at each refresh of metadata."""
        self._topics.discard(topic)

    async def look(self) -> None:
        """Leave the brokers that have not answered for `_SILENT_S` and are no longer part of the cluster."""
        silent = self._silent_brokers()
        if not silent:
            return
        metadata = await self._ask_metadata(silent)
        if metadata is None:
            return
        self.cluster.update_metadata(metadata)
        gone = silent - {broker.nodeId for broker in self.cluster.brokers()}
        for node_id in sorted(gone, key=str):
            log.warning("broker_replaced", broker=node_id, unanswered_s=_SILENT_S)
        for (node_id, _), connection in list(self._conns.items()):
            if node_id in gone:
                connection.close(CloseReason.CONNECTION_TIMEOUT, BrokerReplaced(f"Broker {node_id} was replaced."))
        for attempt, (node_id, _) in self._attempts.items():
            if node_id in gone and not attempt.expired():
                attempt.reschedule(asyncio.get_running_loop().time())

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            try:
                await self.look()
            except Exception:
                log.exception("broker_watch_failed")  # the next look may succeed

    def _silent_brokers(self) -> set[Any]:
        """A broker answers the requests of a connection one after another, so the first one tells."""
        now, before = self._clock(), self._unanswered
        waiting = {
            (connection, connection._requests[0][0]): node_id
            for (node_id, group), connection in self._conns.items()
            if connection._requests and group != _OWN_GROUP  # a look that was given up leaves its request there
        }
        self._unanswered = {first: before.get(first, now) for first in waiting}
        asked = [(waiting[first], since) for first, since in self._unanswered.items()]
        return {node_id for node_id, since in (*asked, *self._attempts.values()) if now - since >= _SILENT_S}

    async def _ask_metadata(self, silent: Collection[Any]) -> Any:
        """Metadata of the first broker that answers; None if none does. Those that are silent are asked last.

        None also if other topics have come meanwhile, of which the answer says nothing.
        """
        topics = set(self._topics)
        nodes = [broker.nodeId for broker in self.cluster.brokers()]
        random.shuffle(nodes)
        request = MetadataRequest(list(topics) or None)
        for node_id in sorted(nodes, key=lambda one: one in silent):
            with contextlib.suppress(KafkaError, OSError):  # OSError includes time-outs
                async with asyncio.timeout(_ANSWER_S):
                    metadata = await self.send(node_id, request, group=_OWN_GROUP)
                return metadata if topics == self._topics else None
        return None

    async def _get_conn(self, node_id: Any, *, group: Any = ConnectionGroup.DEFAULT, no_hint: bool = False) -> Any:
        """The connection to a broker, or None. Connecting to one that hangs delays no other, and ends soon.

        Those that waited for an attempt have its outcome.
        """
        connection = self._conns.get((node_id, group))
        if connection is not None and connection.connected():
            return connection
        num_failed = self._num_failed[node_id, group]
        async with self._connecting[node_id, group]:
            if self._num_failed[node_id, group] != num_failed:
                return None
            connection = None
            try:
                async with asyncio.timeout(_CONNECT_S) as attempt:
                    self._attempts[attempt] = node_id, self._clock()
                    connection = await super()._get_conn(node_id, group=group, no_hint=no_hint)
            except TimeoutError:
                log.info("broker_not_connected", broker=node_id)
                self.force_metadata_update()
            finally:
                self._attempts.pop(attempt, None)
            if connection is None:
                self._num_failed[node_id, group] += 1
            return connection

    @property
    def _get_conn_lock(self) -> contextlib.AbstractAsyncContextManager[None]:
        """aiokafka's one lock for all brokers; `_connecting` has one for each."""
        return contextlib.nullcontext()
