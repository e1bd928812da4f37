"""One member's place: a member runs there, and a new one after it, until the place is dropped or given up."""

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from penstock.worker.supervision.member_process import MemberProcess
from penstock.worker.supervision.member_starter import MemberStarter
from penstock.worker.supervision.placement import Placement
from penstock.worker.supervision.restart_policy import MAX_FAILURES, RestartPolicy

STATES = ("starting", "serving", "restarting", "stopping")
RESTART_REASONS = ("exit", "signal", "not_started", "unresponsive", "rolled")

log = structlog.get_logger("penstock.supervisor")

Died = Callable[[MemberProcess], None]  # a member that did not end in order
Ended = Callable[[MemberProcess, str], None]  # the member, and why another takes its place
Take = Callable[[Placement], MemberProcess | None]  # a member that has loaded, and waits for such a place


@dataclass(frozen=True, slots=True)
class MemberSlotEnd:
    """Why no member runs in a slot any more."""

    exit_code: int = 0  # of its last member
    failure: str = ""  # why members cannot start there; empty if the end was asked for
    is_of_device: bool = False  # members on other devices may start


class MemberSlot:
    """Called on the supervisor's event loop."""

    def __init__(
        self, placement: Placement, starter: MemberStarter, *, once: bool, died: Died, ended: Ended, take_standby: Take
    ) -> None:
        self.placement = placement
        self.member: MemberProcess | None = None
        self._starter = starter
        self._once = once
        self._died = died
        self._ended = ended
        self._take_standby = take_standby
        self._policy = RestartPolicy()
        self._successor: MemberProcess | None = None
        self._standby: MemberProcess | None = None  # that was taken last
        self._pause_s = 0.0
        self._dropped = asyncio.Event()
        self._take()

    @property
    def state(self) -> str:
        """For the metrics."""
        if self._dropped.is_set():
            return "stopping"
        if self.member is None:
            return "starting"  # once others have loaded
        if not self.member.is_running:
            return "restarting"
        return "starting" if self.member.joined_at is None else "serving"

    @property
    def is_empty(self) -> bool:
        """Whether no member runs here; one will, unless the slot is dropped."""
        return self.member is None or not self.member.is_running

    @property
    def is_loading(self) -> bool:
        """Whether a member has been started that has not taken its memory yet."""
        return self.member is not None and self.member.is_running and self.member.report.phase == "loading"

    @property
    def is_dropped(self) -> bool:
        return self._dropped.is_set()

    def drop(self) -> None:
        """Stop the member; no other follows."""
        self._dropped.set()
        for member in filter(None, (self.member, self._successor)):
            member.terminate()

    def replace(self, successor: MemberProcess) -> None:
        """Stop the member; a loaded one takes its place when it has left the group."""
        self._successor = successor
        if self.member is not None:
            self.member.terminate()

    async def keep(self) -> MemberSlotEnd:
        """Keep a member running until the slot is dropped, its work is done, or it cannot start. Called once."""
        while True:
            try:
                member = self._successor or await self._load()
            except OSError as error:  # of the start: too many processes or open files, too little memory
                end = self._on_start_error(error)
                if end is not None:
                    return end
                continue
            self._successor = None
            if member is None:
                return MemberSlotEnd()
            self.member = member
            member.join()
            code = await self._starter.ended(member)
            end = self._end(member, code)
            if end is not None:
                if self._successor is not None:  # the slot was dropped during its replacement
                    await self._starter.ended(self._successor)
                return end

    def _take(self) -> None:
        """Let a member that waits for such a place follow, if there is one."""
        self._successor = self._standby = self._take_standby(self.placement)
        if self._successor is not None:
            self.placement = self._successor.placement

    async def _load(self) -> MemberProcess | None:
        """Wait out the pause, and load a member. None if the slot is dropped meanwhile."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s):
                await self._dropped.wait()
        async with self._starter.turn(self.placement):
            return None if self.is_dropped else await self._starter.start(self.placement, self._show)

    def _show(self, member: MemberProcess) -> None:
        self.member = member
        if self.is_dropped:  # while its process was being started
            member.terminate()

    def _on_start_error(self, error: OSError) -> MemberSlotEnd | None:
        """Log a process that could not be started. None if another start follows."""
        pause_s = None if self.is_dropped else self._policy.pause_s(None)
        event = {"worker": self.placement.worker, "device": self.placement.device, "error": repr(error)}
        if pause_s is None:
            log.error("member_not_started", **event)
            return MemberSlotEnd() if self.is_dropped else MemberSlotEnd(1, _given_up(repr(error)), is_of_device=True)
        log.warning("member_not_started", **event, restart_in_s=pause_s)
        self._pause_s = pause_s
        return None

    def _end(self, member: MemberProcess, code: int) -> MemberSlotEnd | None:
        """Log how a member ended. None if another follows it."""
        event: dict[str, Any] = {**member.names, **exit_fields(code), "uptime_s": member.uptime_s}
        if code:
            self._died(member)
        served_s, failure = member.served_s, member.report.failure
        is_done = self._once and code in (0, 1) and served_s is not None and not member.is_stopping
        if self.is_dropped or is_done:
            log.info("member_exited", **event)
            was_loading = code == -signal.SIGTERM and served_s is None
            return MemberSlotEnd(0 if was_loading else code)
        if self._successor is not None:
            log.info("member_exited", **event, replaced_by=self._successor.pid)
            self._ended(member, "rolled")
            return None
        if failure:
            log.error("member_exited", **event, reason=failure)
            return MemberSlotEnd(code, failure, is_of_device=member.report.failure_is_of_device)
        is_start = member is not self._standby or served_s is not None  # or what ended the one before ended it too
        pause_s = self._policy.pause_s(served_s) if is_start else self._pause_s
        if pause_s is None:
            log.error("member_exited", **event)
            return MemberSlotEnd(code, _given_up(exit_text(code)), is_of_device=True)
        self._take()
        if self._successor is None:
            log.warning("member_exited", **event, restart_in_s=pause_s)
        else:
            log.warning("member_exited", **event, replaced_by=self._successor.pid)
        self._ended(member, _reason(member, code))
        self._pause_s = pause_s
        return None


def _given_up(last: str) -> str:
    return f"{MAX_FAILURES} starts in a row failed, the last with {last}"


def _reason(member: MemberProcess, code: int) -> str:
    """Label of the restarts' metric."""
    if member.is_silent:
        return "unresponsive"
    if member.joined_at is None:
        return "not_started"
    return "signal" if code < 0 else "exit"


def exit_fields(code: int) -> dict[str, Any]:
    """The end of a process, for a log event."""
    return {"signal": _signal_name(-code)} if code < 0 else {"exit_code": code}


def exit_text(code: int) -> str:
    """The end of a process, for a sentence."""
    return _signal_name(-code) if code < 0 else f"exit code {code}"


def _signal_name(number: int) -> str:
    """Real-time signals have no names in Python."""
    return signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"


def ports(slots: Sequence[MemberSlot]) -> Mapping[int, int]:
    """The metrics ports of the members that run. As the two below it is called from other threads, too."""
    members = [slot.member for slot in slots if slot.member is not None]
    return {m.placement.worker: m.report.metrics_port for m in members if m.report.metrics_port and m.is_running}


def states(slots: Sequence[MemberSlot], num_standbys: int, given_up: Counter[str]) -> Mapping[str, int]:
    """Number of members in each state, for metrics. `given_up` is by device."""
    counts = Counter(slot.state for slot in slots)
    return dict.fromkeys(STATES, 0) | counts | {"standby": num_standbys, "given_up": given_up.total()}


def not_serving(slots: Sequence[MemberSlot], given_up: Counter[str]) -> str:
    """Why members that should serve do not; empty if all do."""
    wanted = sorted((slot for slot in slots if not slot.is_dropped), key=lambda slot: slot.placement.worker)
    idle = [f"worker {slot.placement.worker} is {slot.state}" for slot in wanted if slot.state != "serving"]
    denied = sorted({slot.member.report.denied for slot in wanted if slot.member is not None} - {""})
    reasons = [f"{device} is given up" for device in sorted(given_up)] + idle + denied
    return "; ".join(reasons) if wanted else "no member is left"
