"""Whether memory holds a worker's members, for `penstock check`: the supervisor's arithmetic, from one load here.

A member takes more once its batches have been timed. The supervisor counts that too, when the first member has loaded.
"""

import os
from collections.abc import Sequence

from penstock.engine.host_memory import free_host_bytes
from penstock.worker.supervision.machine import free_gpu_bytes, resident_bytes
from penstock.worker.supervision.member_starter import growth_bytes
from penstock.worker.supervision.placement import Machine, Placement, num_fitting


class MemberMemory:
    """Made before the model is loaded in this process; `measure` is called while it is."""

    def __init__(self, machine: Machine) -> None:
        """`machine`: with the memory that is free on each GPU now."""
        self._free = {gpu.uuid: gpu.free_bytes for gpu in machine.gpus}
        self._taken: dict[bool, int] = {}  # by whether on a GPU

    def measure(self, device: str) -> None:
        """Take the memory that the model takes on this device: "cpu", or the first visible GPU."""
        if device == "cpu":
            self._taken[False] = resident_bytes(os.getpid())
            return
        uuid, before = next(iter(self._free.items()), ("", None))
        left = None if before is None else free_gpu_bytes(uuid)
        if before is not None and left is not None:
            self._taken[True] = max(0, before - left)

    def shortage(self, members: Sequence[Placement]) -> str | None:
        """Of the members of one device: the arithmetic if not all fit, else empty. None if their memory is unknown."""
        uuid = members[0].uuid
        taken = self._taken.get(uuid is not None)
        if taken is None:
            return None
        free = self._free[uuid] if uuid is not None else free_host_bytes()
        if uuid is None and free is not None:
            free += taken  # this process ends before they start
        return num_fitting(len(members), free, taken + growth_bytes(members[0]))[1]
