"""When a client leaves a broker that does not answer. Stand-ins for connections and metadata; no broker."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import CoordinatorNotAvailableError, KafkaConnectionError, RequestTimedOutError
from aiokafka.protocol.metadata import MetadataRequest
from structlog.testing import capture_logs

from penstock.producer.aiokafka_internals import client as module
from penstock.producer.aiokafka_internals.client import FailoverClient


class Cluster:
    """Brokers behind connections that the test makes: each answers metadata, and a ping unless it hangs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.hanging: set[int] = set()
        self.refusing: set[int] = set()  # aiokafka logs the error of a connection, and returns none
        self.members = {1, 2, 3}  # by the metadata
        self.asked: list[tuple[int, str]] = []
        self.connecting: list[int] = []
        self.client = FailoverClient(AIOKafkaClient(bootstrap_servers="nowhere:1"), lambda: self.now)
        monkeypatch.setattr(AIOKafkaClient, "_get_conn", self._connect)
        self._update()

    async def _connect(self, node_id: int, *, group: Any, **_: Any) -> Any:
        self.connecting.append(node_id)
        if node_id in self.hanging:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if node_id in self.refusing:
            return None
        connection = self.client._conns[node_id, group] = Connection(self, node_id)
        return connection

    def _update(self) -> None:
        self.client.cluster.update_metadata(self.metadata())

    def metadata(self) -> Any:
        brokers = [(number, "nowhere", number, None) for number in sorted(self.members)]
        return type("Metadata", (), {"API_VERSION": 1, "brokers": brokers, "controller_id": 1, "topics": []})()


class Connection(AIOKafkaConnection):  # type: ignore[misc]  # aiokafka has no type information
    """Answers at once, or never."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        super().__init__("nowhere", number)
        self._stands_for, self._number = cluster, number
        self._closed_fut = asyncio.get_running_loop().create_future()
        self._reader = self._writer = self._read_task = Pipe()

    def send(self, request: Any, expect_response: bool = True) -> Any:
        what = "metadata" if isinstance(request, MetadataRequest) else "ping"
        self._stands_for.asked.append((self._number, what))
        answer = asyncio.get_running_loop().create_future()
        if self._number in self._stands_for.hanging:
            self._requests.append((len(self._requests), request, answer))
        else:
            answer.set_result(self._stands_for.metadata() if what == "metadata" else "pong")
        return answer


class Pipe:
    """The ends of a socket, and the task that reads it."""

    def at_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Nothing to close."""

    def done(self) -> bool:
        return True


@pytest.fixture
async def brokers(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    made = Cluster(monkeypatch)
    yield made
    for connection in made.client._conns.values():
        connection.close()


async def test_a_silent_broker_is_left_when_the_cluster_has_replaced_it_and_not_before(brokers: Cluster) -> None:
    client = brokers.client
    assert await client.send(1, "ping") == "pong"
    await client.ready(1, group=ConnectionGroup.COORDINATION)
    brokers.hanging.add(1)
    groups = ConnectionGroup.DEFAULT, ConnectionGroup.COORDINATION
    waiting = [asyncio.create_task(client.send(1, "ping", group=group)) for group in groups]
    await asyncio.sleep(0)
    await client.look()
    brokers.now += 2.9
    await client.look()
    assert "metadata" not in {what for _, what in brokers.asked}
    brokers.now += 0.2
    with capture_logs() as logs:
        await client.look()  # it is silent, and still a member
    (asked,) = [number for number, what in brokers.asked if what == "metadata"]
    assert asked != 1
    assert logs == []
    assert not any(task.done() for task in waiting)
    brokers.members.remove(1)
    with capture_logs() as logs:
        await client.look()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [RequestTimedOutError] * 2
    assert [(event["event"], event["broker"]) for event in logs] == [("broker_replaced", 1)]


async def test_a_broker_that_answers_is_kept_however_many_requests_it_gets(brokers: Cluster) -> None:
    for _ in range(10):
        assert await brokers.client.send(2, "ping") == "pong"
        brokers.now += 2.0
        await brokers.client.look()
    brokers.members.remove(2)
    await brokers.client.look()
    assert brokers.client._conns[2, ConnectionGroup.DEFAULT].connected()


async def test_a_lost_connection_is_told_from_a_broker_that_was_replaced(brokers: Cluster) -> None:
    brokers.hanging.add(3)
    brokers.client._conns[3, ConnectionGroup.DEFAULT] = connection = Connection(brokers, 3)
    waiting = asyncio.create_task(brokers.client.send(3, "ping"))
    await asyncio.sleep(0)
    connection.close()
    with pytest.raises(KafkaConnectionError):
        await waiting


async def test_connecting_to_a_broker_that_hangs_ends_and_delays_no_other(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CONNECT_S", 1.0)
    brokers.hanging.add(1)
    connecting = asyncio.create_task(brokers.client.ready(1))
    await asyncio.sleep(0)
    assert brokers.connecting == [1]
    assert await brokers.client.ready(2)
    assert not connecting.done()
    assert not await connecting


async def test_those_that_wait_for_an_attempt_to_connect_share_its_failure(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CONNECT_S", 0.05)
    brokers.hanging.add(1)
    assert await asyncio.gather(*[brokers.client.ready(1) for _ in range(20)]) == [False] * 20
    assert brokers.connecting == [1]
    brokers.hanging.clear()
    assert await brokers.client.ready(1)


async def test_an_attempt_that_is_refused_fails_for_those_that_wait_for_it(brokers: Cluster) -> None:
    """A command that makes a token may take 10 s to fail: one after another, twenty would wait for minutes."""
    brokers.refusing.add(1)
    assert await asyncio.gather(*[brokers.client.ready(1) for _ in range(20)]) == [False] * 20
    assert brokers.connecting == [1]
    brokers.refusing.clear()
    assert await brokers.client.ready(1)


async def test_connecting_to_a_broker_ends_when_the_cluster_has_replaced_it(brokers: Cluster) -> None:
    brokers.hanging.add(1)
    connecting = asyncio.create_task(brokers.client.ready(1))
    await asyncio.sleep(0)
    brokers.now += 3.1
    await brokers.client.look()
    assert not connecting.done()
    brokers.members.remove(1)
    await brokers.client.look()
    assert not await asyncio.wait_for(connecting, 60)
    assert brokers.client._attempts == {}


async def test_a_look_that_fails_is_logged_and_followed_by_others(
    brokers: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([ValueError("unexpected")])
    looked_again = asyncio.Event()

    async def look() -> None:
        for error in looks:
            raise error
        looked_again.set()

    monkeypatch.setattr(module, "_LOOK_S", 0.0)
    monkeypatch.setattr(brokers.client, "look", look)
    with capture_logs() as logs:
        watching = asyncio.create_task(brokers.client._watch())
        await asyncio.wait_for(looked_again.wait(), 60)
        watching.cancel()
    assert [one["event"] for one in logs] == ["broker_watch_failed"]


async def test_a_coordinator_whose_broker_goes_while_it_is_asked_is_looked_for_again(brokers: Cluster) -> None:
    """aiokafka's producer asks again after this error, and ends its sender after that of a connection."""
    for number in brokers.members:
        await brokers.client.ready(number)
    brokers.hanging = brokers.members
    asking = asyncio.create_task(brokers.client.coordinator_lookup(CoordinationType.GROUP, "group"))
    await asyncio.sleep(0)
    assert brokers.asked
    for connection in brokers.client._conns.values():
        connection.close()
    with pytest.raises(CoordinatorNotAvailableError):
        await asking
