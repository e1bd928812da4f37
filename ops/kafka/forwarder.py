"""A port that forwards connections to another one of this machine."""

import contextlib
import functools
import socket
import threading
from collections.abc import Callable

from penstock.ops.kafka.errors import BrokerFailed

_BYTES = 64 * 1024
_END_S = 2.0


class Forwarder:
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
