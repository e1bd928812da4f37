"""The control socket between the supervisor and a member: one JSON object a packet, plain data both ways."""

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

EXIT_CANNOT_START = 3  # of a member: for a reason that a restart does not mend; of the command: no member can
MAX_PACKET_BYTES = 64 * 1024
_MAX_FAILURE_CHARS = 4000
PING_EVERY_S = 1.0
JOIN_PACKET = b'{"join": true}'

Phase = Literal["loading", "loaded", "joined"]


@dataclass(frozen=True, slots=True)
class Report:
    """A member's state: all of it at each change, and once a second from its event loop as a ping."""

    phase: Phase = "loading"
    device: str = ""  # "cpu" or "cuda", once loaded
    metrics_port: int | None = None  # on the loopback interface
    group_id: str = ""
    member_id: str = ""  # Kafka's name for it in the group, once joined
    denied: str = ""  # topics that Kafka denies to it
    failure: str = ""  # why it cannot start, where a restart would not help
    failure_is_of_device: bool = False  # another device may do better


_TYPES: Mapping[str, Any] = {field.name: field.type for field in fields(Report) if field.name != "phase"}


def read_report(packet: bytes) -> Report | None:
    """A member's report. None if it cannot be read. Fields of another version of this package are ignored."""
    try:
        said = json.loads(packet)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or said.get("phase", "loading") not in get_args(Phase):
        return None
    if not all(isinstance(said[name], kind) for name, kind in _TYPES.items() if name in said):
        return None
    return Report(**{field.name: said[field.name] for field in fields(Report) if field.name in said})


def control_sockets() -> tuple[socket.socket, socket.socket]:
    """The supervisor's end and a member's end. Each end sees when the process at the other has ended."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class SupervisorLink:
    """A member's end. Made first thing in the process; a thread listens from then on.

    A member whose supervisor has ended stops as on SIGTERM, or at once while it is loading.
    """

    def __init__(self, connection: socket.socket) -> None:
        """Waits for the first packet, which holds the member's settings."""
        connection.set_inheritable(False)
        self._connection = connection
        setup = json.loads(connection.recv(MAX_PACKET_BYTES))
        self.worker: int = setup["worker"]
        self.settings: dict[str, Any] = setup["settings"]
        self.processes: int = setup["processes"]  # members on its GPU, or on the CPU
        # It loads while others serve from its GPU. An earlier version's supervisor does not say.
        self.is_beside: bool = setup.get("is_beside", False)
        self._stop_s: float = setup["stop_s"]  # longest time to stop
        self._report = Report()
        self._may_join: Future[None] = Future()
        self._stop: Callable[[], object] | None = None
        self.report()
        threading.Thread(target=self._listen, name="supervisor-link", daemon=True).start()

    @property
    def phase(self) -> Phase:
        """The phase that was reported last."""
        return self._report.phase

    def report(self, **changes: Any) -> None:
        """Tell the supervisor what changed. Never blocks: a supervisor that does not read misses pings."""
        if "failure" in changes:
            changes["failure"] = changes["failure"][:_MAX_FAILURE_CHARS]
        self._report = replace(self._report, **changes)
        with contextlib.suppress(OSError):  # the supervisor is suspended, or has ended, which the thread sees
            self._connection.send(json.dumps(asdict(self._report)).encode(), socket.MSG_DONTWAIT)

    async def may_join(self, stop: Callable[[], object]) -> None:
        """Wait until the supervisor lets this member join. `stop` runs on this loop when the supervisor ends."""
        loop = asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(stop)
        await asyncio.wrap_future(self._may_join)

    def _let_join(self) -> None:
        if not self._may_join.done():
            self._may_join.set_result(None)

    def _listen(self) -> None:
        try:
            # A supervisor that was killed before it read all reports resets the connection.
            with contextlib.suppress(ConnectionError):
                while self._connection.recv(MAX_PACKET_BYTES):
                    self._let_join()
            if self._stop is not None:
                self._stop()
                time.sleep(self._stop_s)
        finally:
            os._exit(1)


def setup_packet(
    worker: int, settings: dict[str, Any], stop_s: float, processes: int, *, is_beside: bool = False
) -> bytes:
    """The first packet to a member. A member reads its settings here and not from its arguments, which `ps` shows.

    Raises ValueError if the settings are too large.
    """
    setup = {
        "worker": worker,
        "settings": settings,
        "stop_s": stop_s,
        "processes": processes,
        "is_beside": is_beside,
    }
    packet = json.dumps(setup).encode()
    if len(packet) > MAX_PACKET_BYTES:
        raise ValueError(f"The settings of a member take {len(packet):,} bytes, of at most {MAX_PACKET_BYTES:,}.")
    return packet
