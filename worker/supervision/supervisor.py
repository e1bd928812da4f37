"""The process above several members: starts them, watches them, rolls, resizes and stops them."""

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

import structlog

from penstock.producer.transport.cluster import KafkaCluster
from penstock.worker.control_socket import EXIT_CANNOT_START
from penstock.worker.kafka.fetching.group import evict
from penstock.worker.process import EXIT_S
from penstock.worker.settings import WorkerSettings
from penstock.worker.supervision.member_process import MemberProcess, MemberTimeouts, kill_silent
from penstock.worker.supervision.member_slot import MemberSlot, MemberSlotEnd, not_serving, ports, states
from penstock.worker.supervision.member_starter import MemberStarter, free_bytes, member_settings
from penstock.worker.supervision.members_port import MemberMetrics, members_status
from penstock.worker.supervision.mps import MpsClients
from penstock.worker.supervision.placement import Machine, Placement, most_on_a_gpu, num_fitting, place
from penstock.worker.supervision.resizing import Resizing
from penstock.worker.supervision.roll import Roll
from penstock.worker.supervision.standbys import Standbys
from penstock.worker.telemetry.logs import configure_logs
from penstock.worker.telemetry.status_server import serve_status

_JOIN_S = 60.0  # for a new member to join, after the old one has drained

log = structlog.get_logger("penstock.supervisor")


def supervise(
    settings: WorkerSettings,
    machine: Machine,
    placements: Sequence[Placement],
    standbys: Sequence[Placement] = (),
) -> int:
    """Run members until SIGTERM, SIGINT or, with `once`, the end of the topics. Blocks; returns the exit code.

    standbys: of members that wait for the place of one that dies, at most one on a device.

    Raises OSError if the metrics port is taken, and MpsUnavailable, before any member starts.
    """
    configure_logs(settings.log_format, settings.log_level, settings.log_file, pid=os.getpid())
    return asyncio.run(Supervisor(settings, machine, MemberTimeouts()).run(placements, standbys))


class Supervisor:
    """One task keeps each slot filled. All of it runs on one event loop; only metrics are read from other threads."""

    def __init__(self, settings: WorkerSettings, machine: Machine, timeouts: MemberTimeouts) -> None:
        self._settings = settings
        self._cluster = KafkaCluster.of(settings)  # once: certificates may be in the middle of a renewal later
        self._machine = machine
        self._ping_s = timeouts.ping_s
        stop_s = settings.drain_s + EXIT_S
        mps = MpsClients(settings.mps)
        self._starter = MemberStarter(
            member_settings(settings), mps, load_s=timeouts.load_s, stop_s=stop_s, measured=self._fit
        )
        self._metrics = MemberMetrics(lambda: ports(self._all_slots()), self._states)
        self._slots: dict[asyncio.Task[MemberSlotEnd], MemberSlot] = {}
        self._ended: asyncio.Queue[asyncio.Task[MemberSlotEnd]] = asyncio.Queue()  # of slots that stay empty
        self._roll = Roll(self._starter, self._all_slots, join_s=_JOIN_S + settings.drain_s)
        self._standbys = Standbys(self._starter, self._all_slots, lambda: self._roll.is_running)
        self._resizing = Resizing(machine, self._starter, self._all_slots, self._fill_more, self._standbys)
        self._given_up: Counter[str] = Counter()  # device -> members that were given up
        self._tasks: set[asyncio.Task[None]] = set()  # which end by themselves; held, so that they are not collected
        self._stop_signal: signal.Signals | None = None
        self._is_killed = False  # by a second signal
        self._failure = ""  # why no member can start
        self._exit_code = 0
        self._terminals = _terminals()

    async def run(self, placements: Sequence[Placement], standbys: Sequence[Placement] = ()) -> int:
        """Fill the slots until none is left to fill. Returns the exit code."""
        with contextlib.ExitStack() as stack:
            port = self._settings.metrics_port
            if port is not None:
                status = members_status(
                    self._settings, self._metrics.registry, self._not_ready, lambda: ports(self._all_slots())
                )
                server = serve_status(self._settings.metrics_host, port, status)
                stack.callback(server.shutdown)
            devices = Counter(placement.device for placement in placements)
            self._starter.processes = max(devices.values())
            if most_on_a_gpu(placements) > 1:
                self._starter.mps.enter(stack)
            self._handle_signals()
            log.info("supervisor_starting", members=len(placements), devices=list(devices), standbys=len(standbys))
            for placement in placements:
                self._fill(placement)
            for placement in standbys:
                self._run(self._standbys.keep(placement))
            watching = asyncio.create_task(kill_silent(self._starter.running, self._ping_s))
            while self._slots:
                ended = await self._ended.get()
                self._on_end(self._slots.pop(ended), ended.result())
            self._roll.cancel()
            for task in (watching, *self._tasks):
                task.cancel()
            await self._end_rest()
        code = self._final_code()
        log.info("supervisor_stopped", exit_code=code)
        return code

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _fill(self, placement: Placement) -> None:
        slot = MemberSlot(
            placement,
            self._starter,
            once=self._settings.once,
            died=self._on_death,
            ended=self._on_restart,
            take_standby=self._take_standby,
        )
        self._metrics.add_worker(slot.placement.worker)
        keeping = asyncio.create_task(slot.keep())
        keeping.add_done_callback(self._ended.put_nowait)
        self._slots[keeping] = slot

    def _take_standby(self, placement: Placement) -> MemberProcess | None:
        member = self._standbys.take(placement)
        if member is not None:
            self._metrics.add_worker(member.placement.worker)
        return member

    def _on_death(self, member: MemberProcess) -> None:
        """Tell the group, which the member has not left, unless all end."""
        if member.report.member_id and self._stop_signal is None:
            self._run(evict(self._cluster, member.report.group_id, member.report.member_id))

    def _on_restart(self, member: MemberProcess, reason: str) -> None:
        """Count a member that is started again."""
        self._metrics.count_restart(member.placement.worker, reason)
        if reason != "rolled":
            self._starter.mps.on_death(member.placement.device, time.monotonic())

    def _on_end(self, slot: MemberSlot, end: MemberSlotEnd) -> None:
        """Account for a slot that stays empty. A failure ends the members that would share it."""
        device = slot.placement.device
        if not end.failure:
            if device in self._given_up:
                self._given_up[device] += 1
                return  # how it ended counts as the device's failure: it may have died of the same on its own
            self._exit_code = max(self._exit_code, end.exit_code if end.exit_code >= 0 else 1)
            return
        others = [other for other in self._slots.values() if other.placement.device != device and not other.is_dropped]
        if end.is_of_device and others:
            log.error("device_given_up", device=device, reason=end.failure, members_left=len(others))
            self._exit_code = max(self._exit_code, 1)
            self._given_up[device] += 1
        else:
            others = []
            self._failure = self._failure or f"{device}: {end.failure}"
            log.error("could_not_start", reason=self._failure)
        for other in set(self._slots.values()) - set(others):
            other.drop()
        self._standbys.discard(device)

    def _final_code(self) -> int:
        if self._is_killed and self._stop_signal is not None:
            return 128 + self._stop_signal
        return EXIT_CANNOT_START if self._failure else self._exit_code

    async def _end_rest(self) -> None:
        """End members that fill no slot: the successor of a roll that was cancelled."""
        for member in self._starter.running:
            member.kill()
        for member in list(self._starter.running):
            await self._starter.ended(member)

    async def _fit(self, first: MemberProcess) -> None:
        """Drop the members that memory does not hold. Called when the first has loaded, before any other starts."""
        if self._failure or self._stop_signal:  # meanwhile: all are dropped
            return
        if first.report.device == "cpu" and first.placement.gpu is not None and self._settings.gpus == "all":
            log.warning("members_moved_to_cpu", reason="the model does not run on a GPU here")
            for slot in self._slots.values():
                slot.drop()
            placements = place(self._machine, [], self._settings.processes)
            self._starter.processes = len(placements)
            for placement in placements:
                self._fill(placement)
            return
        by_device: dict[str, list[MemberSlot]] = {}
        for slot in self._slots.values():
            by_device.setdefault(slot.placement.device, []).append(slot)
        for device, slots in by_device.items():
            free = await free_bytes(slots[0].placement)
            if free is not None and device == first.placement.device:
                free += self._starter.taken_bytes
            count, arithmetic = num_fitting(len(slots), free, self._starter.member_bytes or 0)
            for slot in sorted(slots, key=lambda slot: slot.member is not first)[count:]:
                if slot.member is not first:
                    slot.drop()
            if arithmetic:
                log.warning("members_limited_by_memory", device=device, reason=arithmetic)

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        loop.add_signal_handler(signal.SIGTTIN, lambda: self._run(self._resizing.add()))
        loop.add_signal_handler(signal.SIGTTOU, self._resizing.remove)

    def _stop(self, number: signal.Signals) -> None:
        """Drain all members; on a second signal end them at once."""
        if self._stop_signal is None:
            self._stop_signal = number
            log.info("supervisor_stopping", signal=number.name, members=len(self._slots))
            for slot in self._slots.values():
                slot.drop()
            self._standbys.discard()
            return
        self._is_killed, self._stop_signal = True, number
        for member in self._starter.running:
            member.kill()

    def _on_hangup(self) -> None:
        """Roll on SIGHUP. A terminal that is closed sends it too: then stop."""
        if not all(map(os.isatty, self._terminals)):
            self._stop(signal.SIGHUP)
        else:
            self._standbys.discard()  # they have loaded what the roll replaces
            self._roll.ask()

    def _fill_more(self, placement: Placement) -> None:
        if not (self._failure or self._stop_signal):
            self._fill(placement)

    def _states(self) -> Mapping[str, int]:
        """Number of members in each state. Called from other threads."""
        return states(self._all_slots(), self._standbys.num_ready, self._given_up)

    def _all_slots(self) -> list[MemberSlot]:
        """The slots now. Called from other threads."""
        return list(self._slots.values())

    def _not_ready(self) -> str:
        """Why members that should serve do not; empty if all do. Called from other threads."""
        if self._failure or self._stop_signal is not None:
            return self._failure or "draining"
        return not_serving(self._all_slots(), self._given_up)


def _terminals() -> list[int]:
    """The standard files that are a terminal with which the command ends; none under nohup."""
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return []
    return [file for file in (0, 1, 2) if os.isatty(file)]
