"""The supervisor's handle on one member: a process and its control socket."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Self

import structlog

from penstock.worker.control_socket import (
    JOIN_PACKET,
    MAX_PACKET_BYTES,
    PING_EVERY_S,
    Report,
    control_sockets,
    read_report,
    setup_packet,
)
from penstock.worker.supervision.placement import Placement

MEMBER: tuple[str, ...] = (sys.executable, "-m", "penstock.worker.supervision.member")
_ABORT_S = 2.0  # to print where it hangs

log = structlog.get_logger("penstock.supervisor")


@dataclass(frozen=True, slots=True)
class MemberTimeouts:
    """Tests shorten them."""

    load_s: float = 900.0  # the first start downloads the model, compiles the kernels and times the batches
    # Longer than any stall that a member recovers from by itself: a compilation, swapping, a suspended machine. Kafka
    # gives its partitions to other members after 10 s without a heartbeat, so the wait costs capacity, not answers.
    ping_s: float = 30.0


class MemberProcess:
    """A fresh interpreter that runs one worker. Made by `start`; `ended` must be awaited."""

    def __init__(
        self, placement: Placement, process: asyncio.subprocess.Process, connection: socket.socket, stop_s: float
    ) -> None:
        self.placement = placement
        self.report = Report()
        self.joined_at: float | None = None  # monotonic seconds
        self.is_stopping = False  # it was asked to
        self.is_silent = False  # it was killed because it did not ping
        self._ticks_since_ping = 0
        self._started_at = time.monotonic()
        self._process = process
        self._connection = connection
        self._stop_s = stop_s
        self._loaded = asyncio.Event()  # or ended
        self._joined = asyncio.Event()  # or ended
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(
        cls,
        placement: Placement,
        settings: dict[str, Any],
        environment: Mapping[str, str],
        stop_s: float,
        processes: int,
        *,
        is_beside: bool = False,
    ) -> Self:
        """Start a member that loads its model and then waits for `join`. `stop_s`: the longest that it may stop.

        `processes`: how many members share its GPU, or the CPU. `is_beside`: it loads after the fleet's start, while
        others serve from its GPU, with one of its cores until it is moved to all. Threads that libraries start would
        hold up the members that serve on these cores: OpenBLAS has one for each, which spins for its first 0.1 s.

        Raises OSError if no process can be started.
        """
        connection, far_end = control_sockets()
        connection.setblocking(False)
        own = placement.cpus[-1:] if is_beside else placement.cpus
        cpus = ",".join(map(str, own))  # the member sets its own: this process keeps its cores meanwhile
        try:
            with far_end:
                process = await asyncio.create_subprocess_exec(
                    *(*MEMBER, str(far_end.fileno()), cpus),
                    pass_fds=(far_end.fileno(),),
                    env={**os.environ, **environment, **placement.environment},
                    stdin=asyncio.subprocess.DEVNULL,
                    process_group=0,  # Ctrl-C in the terminal reaches the supervisor alone, which drains the members
                )
        except OSError:
            connection.close()
            raise
        with contextlib.suppress(ConnectionError):  # it has ended
            connection.send(setup_packet(placement.worker, settings, stop_s, processes, is_beside=is_beside))
        return cls(placement, process, connection, stop_s)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def names(self) -> dict[str, Any]:
        """Which member this is, for a log event."""
        return {"worker": self.placement.worker, "member_pid": self.pid, "device": self.placement.device}

    @property
    def uptime_s(self) -> float:
        return round(time.monotonic() - self._started_at, 3)

    @property
    def is_running(self) -> bool:
        return self._process.returncode is None

    @property
    def served_s(self) -> float | None:
        """Seconds since it joined the group; None if it never did."""
        return None if self.joined_at is None else time.monotonic() - self.joined_at

    async def loaded(self, timeout_s: float) -> bool:
        """Wait until the model is loaded. False if the process ended first; one that takes too long is killed."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._loaded.wait()
        except TimeoutError:
            await self.abort()
        return self.report.phase != "loading"

    async def joined(self, timeout_s: float) -> bool:
        """Wait until the member is in the group. False if it ended first, or not in that time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._joined.wait()
        return self.joined_at is not None and self.is_running

    def join(self) -> None:
        """Let the member join the group."""
        with contextlib.suppress(OSError):  # it has ended
            self._connection.send(JOIN_PACKET)

    def move(self, cpus: tuple[int, ...]) -> None:
        """Let its threads run on other cores."""
        self.placement = replace(self.placement, cpus=cpus)
        with contextlib.suppress(OSError):  # it has ended
            for thread in os.listdir(f"/proc/{self.pid}/task"):
                with contextlib.suppress(ProcessLookupError):  # the thread has ended
                    os.sched_setaffinity(int(thread), cpus)

    def terminate(self) -> None:
        """Ask the member to drain and to leave the group. It is killed if it takes too long. Once or several times."""
        if not self.is_stopping:
            self.is_stopping = True
            self._signal(signal.SIGTERM)
            asyncio.get_running_loop().call_later(self._stop_s, self.kill)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def tick(self) -> int:
        """Count a tick of the supervisor's clock. Returns the ticks since the member's last ping."""
        self._ticks_since_ping += 1
        return self._ticks_since_ping

    async def abort(self) -> None:
        """Kill a member that hangs, which prints where each of its threads is if it can."""
        self.is_silent = True
        self._signal(signal.SIGABRT)
        await asyncio.sleep(_ABORT_S)
        self.kill()

    async def ended(self) -> int:
        """Wait for the end of the process. Returns its exit code; the negated signal if a signal ended it."""
        code = await self._process.wait()
        await self._listening
        self._connection.close()
        return code

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):  # a member that was killed may reset the connection
            while packet := await loop.sock_recv(self._connection, MAX_PACKET_BYTES):
                report = read_report(packet)
                if report is not None:
                    self._update(report)
        self._loaded.set()
        self._joined.set()

    def _update(self, report: Report) -> None:
        self.report = report
        self._ticks_since_ping = 0
        if report.phase != "loading":
            self._loaded.set()
        if report.phase == "joined" and self.joined_at is None:
            self.joined_at = time.monotonic()
            self._joined.set()


async def kill_silent(running: Set[MemberProcess], ping_s: float) -> None:
    """Kill members that have loaded and have not pinged for so long. Runs until it is cancelled.

    Silence counts in ticks of this loop, so that a suspended machine or supervisor accuses no member.
    """
    aborting: set[asyncio.Task[None]] = set()  # held, so that they are not collected
    while True:
        await asyncio.sleep(PING_EVERY_S)
        for member in [member for member in running if member.report.phase != "loading"]:
            silent_s = member.tick() * PING_EVERY_S
            if silent_s > ping_s and not member.is_silent:
                log.error("member_unresponsive", **member.names, silent_s=silent_s)
                abort = asyncio.create_task(member.abort())
                aborting.add(abort)
                abort.add_done_callback(aborting.discard)
