"""Jobs that wait for state slots, and which of them join next."""

from bisect import insort
from collections.abc import Callable, Iterable, Sequence

from penstock.scheduler.cellular.new_jobs import QueuedCellJob

_BULK_SHARE = 0.75  # of a device's slots that bulk jobs hold, but for one larger job: an online job finds a free one
_FEW = 1000  # entries of jobs that have left, which are not worth a removal


class WaitingJobs:
    """A queue by the time at which jobs are due, also of jobs that have left."""

    def __init__(self, max_slots: int | None) -> None:
        """max_slots: of a device; None: no limit."""
        self._max_slots = max_slots
        self._entries: list[QueuedCellJob] = []  # ascending: most jobs are due last

    def clear(self) -> None:
        """Forget the jobs: all have left."""
        self._entries.clear()

    def push(self, entries: Iterable[QueuedCellJob]) -> None:
        """Add jobs."""
        for entry in entries:
            if self._entries and entry < self._entries[-1]:
                insort(self._entries, entry)
            else:
                self._entries.append(entry)

    def fit_together(self, slots: tuple[int, int], held: Sequence[tuple[int, int]]) -> bool:
        """Whether none waits, and there is one device, with room for new jobs in any order.

        slots: that all of them need, and the bulk jobs. held: of each device, by online jobs, and by bulk jobs.
        """
        if self._entries or len(held) > 1:
            return False
        if self._max_slots is None:
            return True
        (online, bulk), (more, more_bulk) = held[0], slots
        fits = online + bulk + more <= self._max_slots
        return fits and (not more_bulk or bulk + more_bulk <= _BULK_SHARE * self._max_slots)

    def take(
        self, held: Sequence[tuple[int, int]], num_waiting: int, may_join: Callable[[QueuedCellJob], bool]
    ) -> list[list[QueuedCellJob]]:
        """Jobs that join now, by device: in the order in which they are due, until the first finds no slots.

        held: as in `fit_together`. may_join: whether a job has not left. Entries of jobs that have left are removed
        once they are half of all.
        """
        if len(self._entries) > 2 * num_waiting + _FEW:
            self._entries = [entry for entry in self._entries if may_join(entry)]
        joining: list[list[QueuedCellJob]] = [[] for _ in held]
        slots = [list(of_device) for of_device in held]
        device = num_taken = 0
        for entry in self._entries:
            if may_join(entry):
                if len(held) > 1:
                    device = min(range(len(slots)), key=lambda device: sum(slots[device]))
                if not self._has_room(entry, *slots[device]):
                    break
                slots[device][entry.bulk] += entry.job.slots
                joining[device].append(entry)
            num_taken += 1
        del self._entries[:num_taken]
        return joining

    def _has_room(self, entry: QueuedCellJob, online: int, bulk: int) -> bool:
        if self._max_slots is None or online + bulk == 0:
            return True
        fits = online + bulk + entry.job.slots <= self._max_slots
        is_over_share = entry.bulk and bulk > 0 and bulk + entry.job.slots > _BULK_SHARE * self._max_slots
        return fits and not is_over_share
