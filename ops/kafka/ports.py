"""Ports of brokers on this machine."""

import contextlib
import random
import socket
import struct
from collections.abc import Sequence

from penstock.ops.kafka.errors import BrokerFailed

# Below Linux's ephemeral range (32768 upwards): a client that retries a stopped broker's port can then neither receive
# that port as its source port nor connect to itself, and the broker can bind the port again.
_PORTS = range(20000, 32000)


class ReservedPorts:
    """Distinct free ports on 127.0.0.1, which no other reservation gets until `release`, in any process.

    Each is held by a socket that is bound and does not listen. A server that sets SO_REUSEADDR, as Java's do, can
    listen there beside it, and again after a restart. A client is refused meanwhile, as at a free port.
    Raises BrokerFailed if fewer than `count` of `among` are free.
    """

    def __init__(self, count: int, among: Sequence[int] = _PORTS) -> None:
        self._sockets: list[socket.socket] = []
        for port in random.sample(among, len(among)):
            if len(self._sockets) == count:
                break
            with contextlib.suppress(OSError):
                self._sockets.append(_bound(port))
        self.numbers = [held.getsockname()[1] for held in self._sockets]
        if len(self.numbers) < count:
            self.release()
            raise BrokerFailed(f"No {count} free ports on 127.0.0.1 between {min(among)} and {max(among)}.")

    def release(self) -> None:
        """Give the ports back. May be called twice."""
        for held in self._sockets:
            held.close()
        self._sockets.clear()


def _bound(port: int) -> socket.socket:
    held = socket.socket()
    try:
        held.bind(("127.0.0.1", port))
    except OSError:
        held.close()
        raise
    # After binding, which would else succeed at a port that is reserved already.
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


def is_free(port: int) -> bool:
    """Whether a server can listen at this port of 127.0.0.1."""
    with contextlib.suppress(OSError), socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, beside connections that have ended
        tried.bind(("127.0.0.1", port))
        tried.listen()
        return True
    return False


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
