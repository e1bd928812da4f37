"""Ports of brokers on this machine."""

import contextlib
import random
import socket
import struct

from penstock.ops.kafka.errors import BrokerFailed

# Below Linux's ephemeral range (32768 upwards): a client that retries a stopped broker's port can then neither receive
# that port as its source port nor connect to itself, and the broker can bind the port again.
_PORTS = range(20000, 32000)


def answers(port: int) -> bool:
    """Whether a broker at this port answers a metadata request with at least one live node."""
    # Size, api key 3 (Metadata), version 1, correlation id, null client id, empty list of topics.
    request = struct.pack(">ihhihi", 14, 3, 1, 1, -1, 0)
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection, connection.makefile("rb") as reply:
            connection.sendall(request)
            head = reply.read(12)
    except OSError:
        return False
    if len(head) < 12:
        return False
    _size, _correlation_id, num_nodes = struct.unpack(">iii", head)
    return bool(num_nodes > 0)


def free_ports(count: int) -> list[int]:
    """Distinct free ports on 127.0.0.1."""
    ports: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise BrokerFailed(f"No free ports on 127.0.0.1 between {_PORTS.start} and {_PORTS.stop}.")
