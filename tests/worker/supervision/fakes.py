"""Members without processes: each follows a script, and the supervisor's own code runs around them."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from penstock.worker.control_socket import Report
from penstock.worker.supervision.placement import Placement


class FakeMember:
    """Loads at once, joins when it may and ends when it is asked to, unless the test wants otherwise."""

    def __init__(self, placement: Placement, pid: int) -> None:
        self.placement = placement
        self.pid = pid
        self.names = {"worker": placement.worker, "member_pid": pid, "device": placement.device}
        self.report = Report(phase="loaded", device="cpu")
        self.joined_at: float | None = None
        self.served_s: float | None = None
        self.uptime_s = 0.0
        self.is_running = True
        self.is_silent = False
        self.is_stopping = False
        self.joins = True
        self.drains = False
        self.environment: Mapping[str, str] = {}
        self.is_beside = False
        self.cpus = placement.cpus  # on which its threads run
        self._code: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.has_joined = asyncio.Event()  # or ended
        self.may_load = asyncio.Event()
        self.may_load.set()

    def end(self, code: int, *, served_s: float | None = None) -> None:
        """End the process."""
        if self.is_running:
            self.is_running, self.served_s = False, served_s
            self._code.set_result(code)
            self.has_joined.set()

    async def loaded(self, timeout_s: float) -> bool:
        await self.may_load.wait()
        return self.report.phase != "loading"

    async def joined(self, timeout_s: float) -> bool:
        await self.has_joined.wait()
        return self.joined_at is not None and self.is_running

    def join(self) -> None:
        if self.joins and self.is_running:
            self.joined_at = 0.0
            self.has_joined.set()

    def move(self, cpus: tuple[int, ...]) -> None:
        self.placement = replace(self.placement, cpus=cpus)
        self.cpus = cpus

    def tick(self) -> int:
        return 1  # it has pinged since, however slow the machine is

    def terminate(self) -> None:
        self.is_stopping = True
        if not self.drains:
            self.end(0, served_s=100.0)

    def kill(self) -> None:
        self.end(-9)

    async def ended(self) -> int:
        return await asyncio.shield(self._code)


class FakeProcesses:
    """In place of the class MemberProcess. `script` may change a new member, or raise OSError."""

    def __init__(self) -> None:
        self.members: list[FakeMember] = []
        self.script: Callable[[FakeMember], object] = lambda member: None
        self.may_start = asyncio.Event()
        self.may_start.set()

    async def start(
        self,
        placement: Placement,
        settings: dict[str, Any],
        environment: Mapping[str, str],
        stop_s: float,
        processes: int,
        *,
        is_beside: bool,
    ) -> FakeMember:
        member = FakeMember(placement, 100 + len(self.members))
        member.is_beside = is_beside
        member.cpus = placement.cpus[-1:] if is_beside else placement.cpus
        member.environment = environment
        self.script(member)
        self.members.append(member)
        await self.may_start.wait()
        return member

    async def until(self, count: int) -> list[FakeMember]:
        """Wait until so many members were started and have joined or ended."""
        async with asyncio.timeout(300):
            while len(self.members) < count:  # noqa: ASYNC110 — there is no event to wait for
                await asyncio.sleep(0)
            for member in self.members[:count]:
                await member.has_joined.wait()
        return self.members
