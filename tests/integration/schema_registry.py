"""The schema registry that the processes of a test run share, and a way to it that can be closed."""

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from penstock.ops.kafka import RegistryServer
from penstock.ops.kafka.jars import exclusive
from penstock.ops.kafka.ports import ReservedPorts


@contextlib.contextmanager
def shared_registry(folder: Path) -> Iterator[str]:
    """The address of one registry for all processes that name this folder. Its start takes ten seconds of a processor.

    The process that comes first starts it, and at its own end waits until no other uses it.
    """
    address, lock = folder / "registry.url", folder / "registry.lock"
    with contextlib.ExitStack() as own, (folder / "registry.users").open("w") as users:
        with exclusive(lock):
            if is_first := not address.exists():
                address.write_text(own.enter_context(RegistryServer()).url)
            fcntl.flock(users, fcntl.LOCK_SH)
            url = address.read_text()
        yield url
        if is_first:
            with exclusive(lock):
                address.unlink()  # a process that comes now starts another
            fcntl.flock(users, fcntl.LOCK_EX)


class Door:
    """A port of its own in front of a registry. While it is shut the registry is away: connections are refused."""

    def __init__(self, url: str) -> None:
        self._registry_port = urlsplit(url).port
        self._reserved = ReservedPorts(1)
        (self._port,) = self._reserved.numbers
        self.url = url.replace(f":{self._registry_port}/", f":{self._port}/")
        self._connections: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._port)

    def shut(self) -> None:
        """Refuse connections, and abort those that there are."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.transport.abort()
        self._server = None

    def close(self) -> None:
        """Shut it for good."""
        self.shut()
        self._reserved.release()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._registry_port)
        ends = {writer, their_writer}
        self._connections |= ends
        try:
            await asyncio.gather(_copy(reader, their_writer), _copy(their_reader, writer))
        finally:
            self._connections -= ends


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    target.close()


@contextlib.asynccontextmanager
async def open_door(url: str) -> AsyncIterator[Door]:
    """A door, open at first."""
    door = Door(url)
    try:
        await door.open()
        yield door
    finally:
        door.close()
