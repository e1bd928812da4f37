"""An S3 server on this machine (moto), and a way to it that breaks when a test says so."""

import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import obstore
import pytest
from obstore.store import S3Store

BUCKET = "rows"

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("at", *server.get_host_and_port(), flush=True)
sys.stdin.read()
"""


@contextmanager
def s3_server() -> Iterator[tuple[str, int]]:
    """Address of a server that ends with the block, or with this process."""
    pytest.importorskip("moto")
    command = [sys.executable, "-c", _SERVER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            _, host, port = next(line for line in server.stdout if line.startswith("at ")).split()
            yield host, int(port)
        finally:
            server.stdin.close()


class Proxy:
    """Forwards connections to a server, up to a number of bytes of its answers."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = "http://{}:{}".format(*self._listening.getsockname())
        self.bytes_left: float = float("inf")  # of answers, until connections break
        self.num_bytes = 0  # of answers
        self.num_connections = 0
        self.lost = b""  # an answer that holds this is lost, once
        self.num_broken = 0
        self._breaks_once = False
        self._clients: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def break_once(self, *, after_bytes: int) -> None:
        """Break a connection after so many bytes of answers, and no other one."""
        self._breaks_once = True
        self.bytes_left = after_bytes

    def close(self) -> None:
        """End all connections, and accept no other."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        self._listening.close()
        for client in self._clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._clients.append(client)
                self.num_connections += 1
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._server) as server:
            asking = threading.Thread(target=self._forward, args=(client, server, False))
            asking.start()
            self._forward(server, client, True)
            asking.join()

    def _forward(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while content := source.recv(1 << 14):
                if counts and self.lost and self.lost in content:
                    self.lost = b""
                    break
                if counts:
                    content = content[: int(min(self.bytes_left, len(content)))]
                    self.bytes_left -= len(content)
                    self.num_bytes += len(content)
                target.sendall(content)
                if self.bytes_left <= 0:
                    self._break()
                    break
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _break(self) -> None:
        self.num_broken += 1
        if self._breaks_once:
            self._breaks_once, self.bytes_left = False, float("inf")


def create_bucket(server: tuple[str, int], bucket: str = BUCKET, *, denied: str = "") -> None:
    """Create a bucket, if there is none, whose policy denies an action."""
    statement = {"Effect": "Deny", "Principal": "*", "Action": denied, "Resource": f"arn:aws:s3:::{bucket}/*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    for method, path, body in (
        ("PUT", f"/{bucket}", None),
        ("PUT", f"/{bucket}?policy", policy) if denied else ("DELETE", f"/{bucket}?policy", None),
    ):
        connection = http.client.HTTPConnection(*server)
        connection.request(method, path, body)
        assert connection.getresponse().status in (200, 204)
        connection.close()


def store_at(address: str, bucket: str = BUCKET) -> S3Store:
    """A store of the test's own, beside the one of the product."""
    return S3Store(
        bucket,
        endpoint=address,
        client_options={"allow_http": True},
        region="us-east-1",
        access_key_id="test",
        secret_access_key="test",
    )


def keys_of(store: S3Store) -> list[str]:
    """The keys of a bucket."""
    return sorted(one["path"] for some in obstore.list(store) for one in some)
