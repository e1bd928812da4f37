"""A reserved port is one broker's: two that start at the same time, in any process, never get the same one."""

import socket
import subprocess
import sys

import pytest

from penstock.ops.kafka import BrokerFailed
from penstock.ops.kafka.ports import ReservedPorts

FEW = range(31900, 31940)  # of the brokers' range, whose other tests may hold some of these


def test_no_port_is_reserved_twice() -> None:
    first = ReservedPorts(10, FEW)
    second = ReservedPorts(10, FEW)
    try:
        assert not set(first.numbers) & set(second.numbers)
    finally:
        first.release()
        second.release()


def test_another_process_gets_none_that_is_reserved() -> None:
    held = ReservedPorts(10)
    command = "import sys; from penstock.ops.kafka.ports import ReservedPorts; ReservedPorts(1, [int(sys.argv[1])])"
    try:
        done = subprocess.run([sys.executable, "-c", command, str(held.numbers[0])], stderr=subprocess.PIPE)
    finally:
        held.release()
    assert done.returncode == 1
    assert b"No 1 free ports" in done.stderr


def test_a_server_listens_at_a_reserved_port_again_and_again() -> None:
    held = ReservedPorts(1)
    address = ("127.0.0.1", held.numbers[0])
    try:
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address)
            with socket.create_server(address), socket.create_connection(address):
                pass
    finally:
        held.release()


def test_a_released_port_is_free() -> None:
    held = ReservedPorts(1)
    held.release()
    with socket.socket() as other:
        other.bind(("127.0.0.1", held.numbers[0]))


def test_a_reservation_that_fails_holds_nothing() -> None:
    with pytest.raises(BrokerFailed, match="No 2 free ports"):
        ReservedPorts(2, FEW[:1])
    ReservedPorts(1, FEW[:1]).release()
