"""Starts members in an order in which they share what the first one prepares, and as many as memory holds."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import structlog
from pydantic import SecretStr

from penstock.engine.host_memory import free_host_bytes
from penstock.producer.secret_url import SecretUrl
from penstock.worker.settings import WorkerSettings
from penstock.worker.supervision import machine
from penstock.worker.supervision.member_process import MemberProcess
from penstock.worker.supervision.mps import MpsClients
from penstock.worker.supervision.placement import Placement

# A member grows after its start: by graphs of new shapes on a GPU, by records in memory elsewhere.
_GPU_GROWTH_BYTES, _HOST_GROWTH_BYTES = 1 << 30, 1 << 29

Measured = Callable[[MemberProcess], Awaitable[None]]
Started = Callable[[MemberProcess], None]

log = structlog.get_logger("penstock.supervisor")


def _ignore(member: MemberProcess) -> None:
    pass


class MemberStarter:
    """Loads members: the first alone, then one on each GPU, then any number at the same time.

    The first compiles the kernels and times the batches, and so does the first on a GPU of another kind; the others
    find both on the disk. A member that loads beside the one that is timed would distort the timings.
    """

    def __init__(
        self, settings: dict[str, Any], mps: MpsClients, *, load_s: float, stop_s: float, measured: Measured
    ) -> None:
        """`settings`: of a member, as JSON data. `load_s`, `stop_s`: longest load and longest stop of a member.

        `measured` is called with the first member that has loaded, before any other starts.
        """
        self.running: set[MemberProcess] = set()
        self.member_bytes: int | None = None  # memory that a member needs, once the first has loaded
        self.taken_bytes = 0  # part of it that a member takes at its start
        self.mps = mps
        self.processes = 1  # members on each GPU, or on the CPU
        self._settings = settings
        self._load_s = load_s
        self._stop_s = stop_s
        self._measured = measured
        self._first = asyncio.Lock()
        self._gpus: dict[int, asyncio.Lock] = {}
        self._loaded: set[int] = set()  # numbers of the members that have loaded once
        self._prepared: set[int | None] = {None}  # GPUs on which a member has loaded; None: the CPU

    @contextlib.asynccontextmanager
    async def turn(self, placement: Placement) -> AsyncIterator[None]:
        """Wait until a member may load there."""
        async with contextlib.AsyncExitStack() as stack:
            if self.member_bytes is None:
                await stack.enter_async_context(self._first)
            if self.member_bytes is not None:
                await stack.aclose()
                if placement.gpu is not None and placement.gpu not in self._prepared:
                    await stack.enter_async_context(self._gpus.setdefault(placement.gpu, asyncio.Lock()))
            yield

    async def start(self, placement: Placement, started: Started = _ignore, *, is_later: bool = False) -> MemberProcess:
        """Start a member, tell `started`, and return when it has loaded or ended. Called inside `turn`.

        `is_later`: after the start of the fleet, as a member is that takes the place of another. Raises OSError if no
        process can be started.
        """
        is_first = self.member_bytes is None
        free = await free_bytes(placement) if is_first else None
        variables = self.mps.variables
        member = await MemberProcess.start(
            placement,
            self._settings,
            variables,
            self._stop_s,
            self.processes,
            is_beside=(is_later or placement.worker in self._loaded) and self._is_shared(placement),
        )
        self.running.add(member)
        started(member)
        log.info("member_started", **member.names, cores=len(placement.cpus))
        if await member.loaded(self._load_s):
            member.move(placement.cpus)
            self._prepared.add(placement.gpu)
            self._loaded.add(placement.worker)
            log.info("member_loaded", **member.names, seconds=member.uptime_s)
            if is_first:
                self.taken_bytes = await _taken_bytes(member, free)
                self.member_bytes = self.taken_bytes + growth_bytes(placement)
                await self._measured(member)
        elif variables and _may_be_of_device(member) and self.mps.on_start_failed(member.report.failure or "it ended"):
            await self.ended(member)
            return await self.start(placement, started, is_later=is_later)
        return member

    def _is_shared(self, placement: Placement) -> bool:
        """Whether members serve from the GPU."""
        serving = (one.placement.gpu for one in self.running if one.joined_at is not None)
        return placement.gpu is not None and placement.gpu in serving

    async def ended(self, member: MemberProcess) -> int:
        """Wait for the end of a member. Returns its exit code; the negated signal if a signal ended it."""
        code = await member.ended()
        self.running.discard(member)
        return code


def member_settings(settings: WorkerSettings) -> dict[str, Any]:
    """The argument of `WorkerSettings.handed_over` for one member. Its metrics are served on a free loopback port."""
    own: dict[str, Any] = {} if settings.metrics_port is None else {"metrics_port": 0, "metrics_host": "127.0.0.1"}
    # `model_dump` hides secrets, as logs should.
    secrets = {name: value.get_secret_value() for name, value in settings if isinstance(value, SecretStr | SecretUrl)}
    values = settings.model_dump(mode="json", include=settings.model_fields_set) | secrets | own
    return {"values": values, "origins": {**dict.fromkeys(own, "supervisor"), **settings.origins}}


def _may_be_of_device(member: MemberProcess) -> bool:
    """Whether a member that did not load might load on another device: neither its model nor its settings are wrong."""
    return not member.is_stopping and (member.report.failure_is_of_device or not member.report.failure)


def growth_bytes(placement: Placement) -> int:
    """Memory that a member may take beyond what it has taken at its start."""
    return _HOST_GROWTH_BYTES if placement.uuid is None else _GPU_GROWTH_BYTES


async def free_bytes(placement: Placement) -> int | None:
    """Memory that is free where a member is placed; None if it is unknown."""
    if placement.uuid is None:
        return free_host_bytes()
    return await asyncio.to_thread(machine.free_gpu_bytes, placement.uuid)


async def _taken_bytes(member: MemberProcess, free_before: int | None) -> int:
    """Memory that a member which has just loaded takes. On a GPU nothing else of this worker changes it meanwhile."""
    if member.placement.uuid is None:
        return machine.resident_bytes(member.pid)
    left = await free_bytes(member.placement)
    return 0 if free_before is None or left is None else max(0, free_before - left)
