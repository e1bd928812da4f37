"""A port that forwards connections to another one of this machine."""

import contextlib
import socket
import threading

from penstock.ops.kafka.errors import BrokerFailed

_BYTES = 64 * 1024


class Forwarder:
    """Forwards from a port of 127.0.0.1, on threads, until `close`. For a few connections of small messages."""

    def __init__(self, port: int, to: int) -> None:
        """Listen. Raises BrokerFailed if the port is taken."""
        self._to = to
        try:
            self._listening = socket.create_server(("127.0.0.1", port))
        except OSError as error:
            raise BrokerFailed(f"Port {port} of 127.0.0.1 cannot be used: {error.strerror}.") from error
        threading.Thread(target=self._accept, name=f"port {port}", daemon=True).start()

    def close(self) -> None:
        """Accept no more. Connections end with the server behind."""
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # ends `accept`
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._to))
            except OSError:
                caller.close()
                continue
            for source, target in ((caller, server), (server, caller)):
                threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy one direction. Its end ends both, and the other direction's thread with it."""
    with contextlib.suppress(OSError):
        while data := source.recv(_BYTES):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
