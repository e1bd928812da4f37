"""Jobs that wait for state slots, and which of them join next."""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from penstock.scheduler.cellular.arrays import DEADLINE, NUMBER
from penstock.scheduler.cellular.compiled import load_kernels
from penstock.scheduler.cellular.jobs import JobRows
from penstock.scheduler.cellular.types import BoolArray, Float64Array, Int64Array

_BULK_SHARE = 0.75  # of the slots that bulk jobs hold, but for one larger job: an online job finds a free one
_FEW = 1000  # jobs that have left, which are not worth a removal
_WINDOW = 1024  # rows that are looked at together
_SMALL = 256  # rows of a block to which later jobs are added

TooLate = Callable[[JobRows], Float64Array]  # seconds by which jobs would be late if they joined now; 0 or less: none


@dataclass(slots=True)
class _Block:
    """Rows in the order in which they are due; those before `first` have joined or left."""

    rows: JobRows
    has_deadlines: bool
    first: int = 0

    @classmethod
    def of(cls, rows: JobRows) -> "_Block":
        """All these rows."""
        rows = rows._replace(columns=np.ascontiguousarray(rows.columns))  # as the kernel was compiled for
        return cls(rows, bool(rows.times[DEADLINE].min() < math.inf))

    def __len__(self) -> int:
        return len(self.rows.graphs) - self.first

    def left(self) -> JobRows:
        """Those from `first` on."""
        return self.rows.between(self.first, len(self.rows.graphs))


class WaitingJobs:
    """A queue by the time at which jobs are due, bulk jobs behind online ones, also of jobs that have left.

    Jobs come and go in blocks of arrays: under overload most of a scheduler's time would else be theirs.
    """

    def __init__(self, max_slots: float) -> None:
        """max_slots: of the device; inf: no limit."""
        self._bounds = max_slots, _BULK_SHARE * max_slots  # for all jobs, and for bulk jobs
        self._queues: tuple[deque[_Block], deque[_Block]] = (deque(), deque())  # online and bulk; blocks are in order
        self._gone: set[int] = set()  # numbers of jobs in the queue that have left

    def __len__(self) -> int:
        return sum([len(block) for queue in self._queues for block in queue])

    def clear(self) -> None:
        """Forget the jobs: all have left."""
        if any(self._queues):
            for queue in self._queues:
                queue.clear()
            self._gone.clear()

    def push(self, rows: JobRows) -> None:
        """Add jobs."""
        are_online = rows.online()
        for queue, are_here in zip(self._queues, (are_online, ~are_online), strict=True):
            if np.count_nonzero(are_here):
                _append(queue, rows.where(are_here))

    def leave(self, numbers: Iterable[int]) -> None:
        """Jobs in the queue do not wait any more."""
        self._gone.update(numbers)
        if len(self._gone) > len(self) // 2 + _FEW:
            for queue in self._queues:
                kept = [block.left() for block in queue]
                found = [(rows, self._are_here(rows.columns[NUMBER])) for rows in kept]
                queue.clear()
                queue.extend([_Block.of(rows.where(are_here)) for rows, are_here in found if np.any(are_here)])
            self._gone.clear()

    def fit_together(self, slots: tuple[int, int], held: tuple[int, int]) -> bool:
        """Whether new jobs all find slots, in any order, and no other waits.

        slots: that all of them need, and the bulk jobs. held: by online jobs and by bulk jobs.
        """
        most, most_bulk = self._bounds
        (online, bulk), (more, more_bulk) = held, slots
        fits = online + bulk + more <= most and (not more_bulk or bulk + more_bulk <= most_bulk)
        return fits and not any(self._queues)

    def take(
        self, held: tuple[int, int], too_late: TooLate | None
    ) -> tuple[list[JobRows], list[tuple[JobRows, Float64Array]]]:
        """Jobs that join now, in the order in which they are due, until the first that finds no slots.

        held: as in `fit_together`. Jobs that are too late leave instead: the second list, with seconds.
        """
        joining: list[JobRows] = []
        late: list[tuple[JobRows, Float64Array]] = []
        slots, count_fitting = np.array(held, np.int64), load_kernels().count_fitting
        for queue in self._queues:
            while queue:
                block = queue[0]
                first, end = block.first, min(block.first + _WINDOW, len(block.rows.graphs))
                may_join, are_late = self._are_here(block.rows.columns[NUMBER, first:end]), None
                if too_late is not None and block.has_deadlines:
                    late_s = too_late(block.rows.between(first, end))
                    are_late = may_join & (late_s > 0)
                    may_join &= ~are_late
                num_taken = count_fitting(block.rows.columns, first, may_join, slots, *self._bounds)
                if not num_taken:
                    return joining, late
                taken = block.rows.between(first, first + num_taken)
                if (are_joining := may_join[:num_taken]).any():
                    joining.append(taken.where(are_joining))
                if are_late is not None and (left := are_late[:num_taken]).any():
                    late.append((taken.where(left), late_s[:num_taken][left]))
                if self._gone:
                    self._gone.difference_update(taken.columns[NUMBER].tolist())
                block.first += num_taken
                if num_taken < end - first:
                    return joining, late
                if not len(block):
                    queue.popleft()
        return joining, late

    def _are_here(self, numbers: Int64Array) -> BoolArray:
        """Which jobs have not left."""
        if not self._gone:
            return np.ones(len(numbers), np.bool_)
        return np.array([number not in self._gone for number in numbers.tolist()], np.bool_)


def _append(queue: deque[_Block], rows: JobRows) -> None:
    """Put jobs at their places. Most are due last. Small blocks become one."""
    parts = [rows.in_order()]
    first = parts[0].place(0)
    while queue and (len(queue[-1]) < _SMALL or queue[-1].rows.place(-1) > first):
        last = queue.pop()
        if len(last):
            parts.insert(0, last.left())
    queue.append(_Block.of(parts[0] if len(parts) == 1 else JobRows.joined(parts).in_order()))
