"""Replacing all members one at a time, as SIGHUP asks for."""

import asyncio
from collections.abc import Callable, Sequence

import structlog

from penstock.worker.supervision.member_process import MemberProcess
from penstock.worker.supervision.member_slot import MemberSlot, exit_text
from penstock.worker.supervision.member_starter import MemberStarter

log = structlog.get_logger("penstock.supervisor")


class Roll:
    """A new member loads before the old one leaves, so the group is never short of it. Called on the event loop."""

    def __init__(self, starter: MemberStarter, slots: Callable[[], Sequence[MemberSlot]], *, join_s: float) -> None:
        """`join_s`: the longest that a new member may take to join, with the time in which the old one drains."""
        self._starter = starter
        self._slots = slots
        self._join_s = join_s
        self._running: asyncio.Task[None] | None = None
        self._is_asked = False

    @property
    def is_running(self) -> bool:
        return self._running is not None and not self._running.done()

    def ask(self) -> None:
        """Roll, or if a roll runs, once more after it: what changed may have come after its first members loaded."""
        self._is_asked = True
        if not self.is_running:
            self._running = asyncio.create_task(self._run_while_asked())
        else:
            log.info("roll_queued")

    def cancel(self) -> None:
        """End a roll. A member that it is starting is left to the caller."""
        if self._running is not None:
            self._running.cancel()

    async def _run_while_asked(self) -> None:
        while self._is_asked:
            self._is_asked = False
            slots = self._slots()
            log.info("roll_started", members=len(slots))
            for slot in slots:
                if not await self._replace(slot):
                    break
            else:
                log.info("roll_finished")

    async def _replace(self, slot: MemberSlot) -> bool:
        """Replace a slot's member, unless it is being started anyway. Returns whether the roll may go on."""
        old = slot.member
        if slot.state != "serving" or old is None:
            return True
        try:
            async with self._starter.turn(slot.placement):
                new = await self._starter.start(slot.placement)
        except OSError as error:
            return _failed(old, repr(error), "The old member stays.")
        if slot.member is not old or slot.state != "serving":
            new.terminate()  # the old one ended meanwhile, and is replaced already
            await self._starter.ended(new)
            return True
        if new.report.phase == "loading":
            code = await self._starter.ended(new)
            reason = new.report.failure or f"the new member ended with {exit_text(code)}"
            return _failed(old, reason, "The old member stays.")
        slot.replace(new)
        if await new.joined(self._join_s) or slot.is_dropped:
            return True
        return _failed(new, "the new member did not join the group", "The members after it stay.")


def _failed(member: MemberProcess, reason: str, note: str) -> bool:
    log.error("roll_failed", **member.names, reason=reason, note=note)
    return False
