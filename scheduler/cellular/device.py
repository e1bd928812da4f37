"""A device as the scheduler sees it."""

from collections import deque
from typing import NamedTuple

from penstock.scheduler.cellular.table import JobTable, PlannedRows
from penstock.scheduler.cellular.types import CellTask


class Outstanding(NamedTuple):
    """A task that has not ended, and its rows in the table."""

    task: CellTask
    rows: PlannedRows


class Device:
    """Tasks that are planned on a device, and nodes that may be."""

    def __init__(self, num_cells: int) -> None:
        self.table = JobTable(num_cells)
        self.tasks: deque[Outstanding] = deque()
        self.num_running = [0] * num_cells  # outstanding tasks
        self.num_passes = [0] * num_cells  # tasks of other cells since a node was ready
