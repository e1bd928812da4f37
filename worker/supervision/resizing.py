"""One member more or fewer, as SIGTTIN and SIGTTOU ask for."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import structlog

from penstock.worker.supervision.member_slot import MemberSlot
from penstock.worker.supervision.member_starter import MemberStarter, free_bytes
from penstock.worker.supervision.placement import Machine, Placement, num_fitting, one_more
from penstock.worker.supervision.standbys import Standbys

log = structlog.get_logger("penstock.supervisor")


class Resizing:
    """Called on the supervisor's event loop."""

    def __init__(
        self,
        machine: Machine,
        starter: MemberStarter,
        slots: Callable[[], Sequence[MemberSlot]],
        fill: Callable[[Placement], None],
        standbys: Standbys,
    ) -> None:
        """fill: starts a member, unless all are being stopped."""
        self._machine = machine
        self._starter = starter
        self._slots = slots
        self._fill = fill
        self._standbys = standbys
        self._adding = asyncio.Lock()

    async def add(self) -> None:
        """One member more, where the fewest are: one that waits there, or else a new one, if memory holds it."""
        async with self._adding:  # each sees the members of those before
            slots = self._slots()
            placed = [slot.placement for slot in slots]
            numbers = {one.worker for one in placed} | self._standbys.numbers
            placement = one_more(self._machine, placed, numbers)
            if self._standbys.is_ready(placement.device):
                self._fill(placement)  # which takes it
                return
            here = [slot for slot in slots if slot.placement.device == placement.device]
            loading = sum((slot.is_empty and not slot.is_dropped) or slot.is_loading for slot in here)
            count = 1 + loading + self._standbys.num_loading(placement.device)  # memory is free for these
            member_bytes = self._starter.member_bytes
            fits, arithmetic = num_fitting(count, await free_bytes(placement), member_bytes or 0)
            if member_bytes is None or fits < count:
                reason = arithmetic or "the first is still loading"
                log.warning("member_not_added", device=placement.device, reason=reason)
            else:
                self._fill(placement)

    def remove(self) -> None:
        """Stop one member, where the most are, but not the last one."""
        slots = [slot for slot in self._slots() if not slot.is_dropped]
        if len(slots) < 2:
            log.warning("member_not_removed", reason="it is the last one")
            return
        counts = Counter(slot.placement.device for slot in slots)
        max(slots, key=lambda slot: (counts[slot.placement.device], slot.placement.worker)).drop()
