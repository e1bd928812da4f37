"""The local broker is a real Kafka: it keeps acknowledged records, and it never outlives its owner."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from penstock.ops.kafka import FULL_SPEED, BrokerFailed, KafkaBroker

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    with KafkaBroker(num_partitions=3) as broker:
        yield broker


async def send(broker: KafkaBroker, topic: str, *values: bytes) -> None:
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap_servers, enable_idempotence=True, max_request_size=8 << 20
    )
    async with producer:
        for value in values:
            await producer.send_and_wait(topic, value)


async def receive(broker: KafkaBroker, topic: str, count: int) -> list[bytes]:
    consumer = AIOKafkaConsumer(
        topic,
        bootstrap_servers=broker.bootstrap_servers,
        group_id=f"{topic}-readers",
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=8 << 20,
    )
    async with consumer, asyncio.timeout(300):
        return [bytes((await consumer.getone()).value) for _ in range(count)]


async def test_a_group_reads_what_an_idempotent_producer_wrote(broker: KafkaBroker) -> None:
    values = [b"%d" % i for i in range(20)]
    await send(broker, "round-trip", *values)
    assert sorted(await receive(broker, "round-trip", 20)) == sorted(values)


async def test_five_megabyte_records_pass(broker: KafkaBroker) -> None:
    value = os.urandom(5_000_000)
    await send(broker, "large", value)
    assert await receive(broker, "large", 1) == [value]


async def test_a_topic_that_appears_on_first_use_has_the_configured_partitions(broker: KafkaBroker) -> None:
    async with AIOKafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        await producer.send_and_wait("counted", b"")
        assert await producer.partitions_for("counted") == {0, 1, 2}


async def test_acknowledged_records_survive_kill_and_restart() -> None:
    with KafkaBroker() as broker:
        address = broker.bootstrap_servers
        await send(broker, "kept", b"before")
        await asyncio.to_thread(broker.kill)
        assert broker.pid is None
        await asyncio.to_thread(broker.start)
        await send(broker, "kept", b"between")
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)
        assert broker.bootstrap_servers == address
        assert await receive(broker, "kept", 2) == [b"before", b"between"]


async def test_two_brokers_run_side_by_side_and_share_nothing(broker: KafkaBroker) -> None:
    with KafkaBroker() as other:
        await send(broker, "side", b"one")
        await send(other, "side", b"two")
        assert await receive(broker, "side", 1) == [b"one"]
        assert await receive(other, "side", 1) == [b"two"]


def test_close_leaves_no_process_and_no_files() -> None:
    with KafkaBroker() as broker:
        pid, log_path = broker.pid, broker.log_path
        assert log_path.exists()
    assert pid is not None
    assert not Path(f"/proc/{pid}").exists()
    assert not log_path.parent.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(_address(broker))


def test_a_given_data_dir_outlives_the_broker(tmp_path: Path) -> None:
    with KafkaBroker(data_dir=tmp_path) as broker:
        asyncio.run(send(broker, "kept", b"value"))
    with KafkaBroker(data_dir=tmp_path) as broker:
        assert asyncio.run(receive(broker, "kept", 1)) == [b"value"]


def test_the_broker_dies_with_a_killed_owner(tmp_path: Path) -> None:
    owner = (
        f"import sys, pathlib; from penstock.ops.kafka import KafkaBroker; data_dir = pathlib.Path({str(tmp_path)!r});"
    )
    owner += "b = KafkaBroker(data_dir=data_dir); b.start(); print(b.bootstrap_servers, flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", owner], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        host, port = process.stdout.readline().decode().strip().split(":")
        with socket.create_connection((host, int(port)), timeout=300) as connection:
            process.send_signal(signal.SIGKILL)
            # The kernel closes the connection when the broker's process is gone; until then recv waits.
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""


def test_the_jvm_runs_with_the_given_flags() -> None:
    with KafkaBroker(jvm_flags=FULL_SPEED) as broker:
        command = Path(f"/proc/{broker.pid}/cmdline").read_bytes().decode().split("\0")
    assert set(FULL_SPEED) <= set(command)
    assert "-XX:+UseSerialGC" not in command


def test_a_broker_that_cannot_start_says_why_and_leaves_no_process() -> None:
    broker = KafkaBroker(config={"process.roles": "bystander"})
    with pytest.raises(BrokerFailed, match="bystander"), broker:
        pass
    assert broker.pid is None
    assert not broker.log_path.parent.exists()


def test_a_broker_whose_port_is_taken_says_so() -> None:
    broker = KafkaBroker()
    with (
        socket.create_server(_address(broker)),
        pytest.raises(BrokerFailed, match=r"failed to bind to .*: Address already in use"),
        broker,
    ):
        pass


def _address(broker: KafkaBroker) -> tuple[str, int]:
    host, port = broker.bootstrap_servers.split(":")
    return host, int(port)
