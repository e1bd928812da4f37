"""Members that have loaded and wait for the place of one that dies, at most one on a device."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from penstock.worker.supervision.member_process import MemberProcess
from penstock.worker.supervision.member_slot import MemberSlot, exit_text
from penstock.worker.supervision.member_starter import MemberStarter, free_bytes
from penstock.worker.supervision.placement import Placement, num_fitting
from penstock.worker.supervision.restart_policy import RestartPolicy

_LOOK_EVERY_S = 1.0

log = structlog.get_logger("penstock.supervisor")


class Standbys:
    """The members of all devices that wait. Called on the supervisor's event loop."""

    def __init__(
        self, starter: MemberStarter, slots: Callable[[], Sequence[MemberSlot]], is_rolling: Callable[[], bool]
    ) -> None:
        """slots: of the members that serve. is_rolling: whether they are being replaced."""
        self._starter = starter
        self._slots = slots
        self._is_rolling = is_rolling
        self._standbys: list[_Standby] = []

    @property
    def num_ready(self) -> int:
        """Members that wait. Called from other threads too."""
        return sum([standby.is_ready for standby in tuple(self._standbys)])

    @property
    def numbers(self) -> set[int]:
        """The worker numbers of those that wait, or load."""
        return {standby.worker for standby in self._standbys}

    def num_loading(self, device: str) -> int:
        """Members that load on a device, whose memory is not taken yet."""
        return sum(standby.is_loading for standby in self._standbys if standby.device == device)

    def is_ready(self, device: str) -> bool:
        """Whether a member waits on a device."""
        return any(standby.is_ready for standby in self._standbys if standby.device == device)

    async def keep(self, placement: Placement) -> None:
        """Keep a member waiting on a device until the caller cancels this, memory holds none, or none can start.

        placement: its worker number, and its cores while it loads.
        """
        standby = _Standby(placement, self._starter, self._is_due)
        self._standbys.append(standby)
        await standby.keep()

    def take(self, placement: Placement) -> MemberProcess | None:
        """The member that waits on the device of a place, if there is one, moved to the place's cores."""
        return next(filter(None, (standby.take(placement) for standby in self._standbys)), None)

    def discard(self, device: str | None = None) -> None:
        """End what waits or loads on a device, or on all. Others follow when all members there serve again."""
        for standby in self._standbys:
            if device in (None, standby.device):
                standby.discard()

    def _is_due(self, device: str) -> bool:
        slots = [slot for slot in self._slots() if slot.placement.device == device]
        return bool(slots) and all(slot.state == "serving" for slot in slots) and not self._is_rolling()


class _Standby:
    """The member of one device."""

    def __init__(self, placement: Placement, starter: MemberStarter, is_due: Callable[[str], bool]) -> None:
        """is_due: whether one may load on this device now."""
        self._placement = placement
        self._starter = starter
        self._is_due = is_due
        self._policy = RestartPolicy()
        self._member: MemberProcess | None = None
        self._is_ready = False
        self._taken = asyncio.Event()

    @property
    def worker(self) -> int:
        return self._placement.worker

    @property
    def device(self) -> str:
        return self._placement.device

    @property
    def is_ready(self) -> bool:
        """Whether a member waits, and is not being ended."""
        member = self._member
        return self._is_ready and member is not None and member.is_running and not member.is_stopping

    @property
    def is_loading(self) -> bool:
        return self._member is not None and self._member.is_running and not self._is_ready

    def take(self, placement: Placement) -> MemberProcess | None:
        """See `Standbys.take`. The next one here gets the number of the place."""
        member = self._member
        if not self.is_ready or member is None or placement.device != self.device:
            return None
        self._member, self._is_ready = None, False
        self._placement = replace(self._placement, worker=placement.worker)
        self._policy = RestartPolicy()
        member.move(placement.cpus)
        self._taken.set()
        return member

    def discard(self) -> None:
        """See `Standbys.discard`."""
        if self._member is not None:
            self._member.terminate()

    async def keep(self) -> None:
        """See `Standbys.keep`."""
        pause_s: float | None = 0.0
        while pause_s is not None:
            await asyncio.sleep(pause_s)
            while not self._is_due(self.device):  # noqa: ASYNC110 — many things make it due
                await asyncio.sleep(_LOOK_EVERY_S)
            fits, arithmetic = num_fitting(1, await free_bytes(self._placement), self._starter.member_bytes or 0)
            if not fits:
                log.warning("standby_given_up", device=self.device, reason=arithmetic)
                return
            pause_s = await self._run_one()
        log.error("standby_given_up", device=self.device, reason="members that should wait end at once")

    async def _run_one(self) -> float | None:
        """Load a member, which waits until it is taken or ends. Returns the pause before the next; None: no other."""
        try:
            async with self._starter.turn(self._placement):
                member = await self._starter.start(self._placement, self._show, is_later=True)
        except OSError as error:
            log.warning("standby_failed", device=self.device, reason=repr(error))
            return self._policy.pause_s(None)
        load_s = member.uptime_s
        if member.report.phase != "loading":
            self._is_ready = True
            log.info("standby_ready", **member.names, seconds=load_s)
        self._taken.clear()
        await self._taken_or_ended(member)
        if self._member is None:
            return 0.0  # taken: whoever took it waits for its end
        waited_s = member.uptime_s - load_s if self._is_ready else None
        self._member, self._is_ready = None, False
        if member.is_stopping:
            return 0.0
        code = await self._starter.ended(member)
        reason = member.report.failure or f"it ended with {exit_text(code)}"
        log.warning("standby_failed", **member.names, reason=reason)
        return self._policy.pause_s(waited_s)

    def _show(self, member: MemberProcess) -> None:
        self._member = member
        if not self._is_due(self.device):  # since its process was going to be started
            member.terminate()

    async def _taken_or_ended(self, member: MemberProcess) -> None:
        ending = asyncio.create_task(self._starter.ended(member))
        taking = asyncio.create_task(self._taken.wait())
        try:
            await asyncio.wait((ending, taking), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (ending, taking):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
