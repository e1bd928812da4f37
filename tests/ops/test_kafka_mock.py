"""The mock cluster has the features and the limits that its docstring lists."""

import asyncio
import socket
import sys
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from penstock import SyncClient
from penstock.ops.kafka import BrokerFailed, BrokerMissing, MockBroker
from penstock.ops.kafka.ports import ReservedPorts, is_free


@pytest.fixture(scope="module")
def broker() -> Iterator[MockBroker]:
    with MockBroker() as broker:
        yield broker


async def test_a_topic_appears_on_first_use_with_four_partitions(broker: MockBroker) -> None:
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True) as producer:
        await producer.send_and_wait("fresh", b"value")
        assert await producer.partitions_for("fresh") == {0, 1, 2, 3}


@pytest.mark.slow
async def test_one_group_member_reads_every_record_and_commits(broker: MockBroker) -> None:
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True) as producer:
        for i in range(20):
            await producer.send_and_wait("grouped", b"%d" % i, headers=[("name", b"header")])
    consumer = AIOKafkaConsumer(
        "grouped", bootstrap_servers=broker.bootstrap_servers, group_id="readers", auto_offset_reset="earliest"
    )
    async with consumer, asyncio.timeout(300):
        records = [await consumer.getone() for _ in range(20)]
        await consumer.commit()
        committed = [await consumer.committed(partition) for partition in sorted(consumer.assignment())]
    assert sorted(int(record.value) for record in records) == list(range(20))
    assert {record.headers for record in records} == {(("name", b"header"),)}
    assert sum(committed) == 20


async def test_a_consumer_with_assigned_partitions_needs_no_group(broker: MockBroker) -> None:
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap_servers, auto_offset_reset="earliest")
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer, consumer, asyncio.timeout(300):
        await producer.send_and_wait("assigned", b"value", partition=2)
        consumer.assign([TopicPartition("assigned", 2)])
        assert (await consumer.getone()).value == b"value"


def test_leaving_the_context_ends_the_cluster() -> None:
    with MockBroker() as broker:
        host, port = broker.bootstrap_servers.split(":")
        socket.create_connection((host, int(port))).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)))
    with pytest.raises(BrokerFailed, match="enter its context first"):
        _ = broker.bootstrap_servers


def test_without_confluent_kafka_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(BrokerMissing, match=r"pip install 'penstock\[demo\]'"), MockBroker():
        pass


def test_a_chosen_port_leads_to_the_mock() -> None:
    ports = ReservedPorts(1)
    (port,) = ports.numbers
    with MockBroker(port) as broker:
        assert broker.bootstrap_servers == f"127.0.0.1:{port}"
        with SyncClient(bootstrap_servers=f"localhost:{port}", model="m", fetch_max_wait_ms=5):
            pass
        assert not is_free(port)
        with pytest.raises(BrokerFailed, match=f"Port {port} of 127.0.0.1 cannot be used"), MockBroker(port):
            pass
    ports.release()
    assert is_free(port)
