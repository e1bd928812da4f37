"""The methods of a scheduler of cells."""

from collections.abc import Sequence
from typing import Protocol

from penstock.scheduler.cellular import CellJob, CellTask
from penstock.scheduler.cellular.types import BoolArray, Int32Array
from penstock.scheduler.types import RejectedJob, Wait


class CellScheduling(Protocol):
    """Methods that `CellScheduler` and the policies it is compared with have in common."""

    def add(self, jobs: Sequence[CellJob], now: float) -> list[RejectedJob]: ...

    def poll(self, now: float, device: int = 0) -> CellTask | Wait: ...

    def finished(
        self, task_id: int, now: float, steps: Int32Array, is_stopped: BoolArray, measured_s: float
    ) -> list[int]: ...
