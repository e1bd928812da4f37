"""Single flight with urgency: rows alike are computed once, for the one among them that can wait least."""

import math
from collections.abc import Iterable

from penstock.worker.requests.record import Row


class Flights:
    """Which rows wait for which computation. Pure bookkeeping, on the worker's event loop only.

    Rows of equal keys fly together. One of them leads: its class and its deadline are those of the job that waits for
    the engine. While it waits, a row that can wait less takes the lead over; from `start` on nobody can.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, list[Row]] = {}
        self._leaders: dict[bytes, Row] = {}  # of the flights whose job waits

    def join(self, rows: Iterable[Row]) -> list[Row]:
        """Add rows. Returns those that should get a job: one for each flight that is new, or has a less urgent leader.

        The caller then says for each whether it leads (`lead`) or is refused (`refuse`).
        """
        contenders: dict[bytes, Row] = {}
        for row in rows:
            flight = self._rows.get(row.key)
            if flight is None:
                self._rows[row.key] = [row]
                contenders[row.key] = row
                continue
            flight.append(row)
            ahead = contenders.get(row.key) or self._leaders.get(row.key)
            if ahead is not None and urgency(row) < urgency(ahead):
                contenders[row.key] = row
        return list(contenders.values())

    def lead(self, row: Row) -> Row | None:
        """The row's job waits now. Returns the row whose job it replaces, if there is one."""
        former = self._leaders.get(row.key)
        self._leaders[row.key] = row
        return former

    def start(self, row: Row) -> None:
        """The leader's job does not wait any longer: it runs, or it was refused or taken back."""
        del self._leaders[row.key]

    def refuse(self, row: Row, late_s: float) -> list[tuple[Row, float]]:
        """A row would be `late_s` late. Returns whoever would be late with it, and how late: their records end.

        The row is among them. Those that the flight's present leader, if there is one, is for stay.
        """
        done_at = deadline_of(row) + late_s
        late = [(other, done_at - deadline_of(other)) for other in self._rivals(row) if other is not row]
        return [(row, late_s), *[(other, by_s) for other, by_s in late if by_s > 0]]

    def heir(self, row: Row) -> Row | None:
        """The row that should have a job in place of this one, which has none any longer; None: nobody needs one.

        Rows of records that were answered with an error leave here; a flight that nobody waits for is over.
        """
        if row.key not in self._rows:
            return None
        living = [other for other in self._rows[row.key] if not other.owner.failed]
        if not living:
            del self._rows[row.key]
            return None
        self._rows[row.key] = living
        return min(self._rivals(row), key=urgency, default=None)

    def finish(self, row: Row) -> list[Row]:
        """The computation has ended. Returns all rows that wait for it, in the order they came."""
        return [other for other in self._rows.pop(row.key) if not other.owner.failed]

    def _rivals(self, row: Row) -> list[Row]:
        """The rows of its flight that can wait less than the leader; all, where there is none."""
        leader = self._leaders.get(row.key)
        flight = self._rows[row.key]
        return flight if leader is None else [other for other in flight if urgency(other) < urgency(leader)]


def deadline_of(row: Row) -> float:
    """On the worker's monotonic clock, seconds; infinite when there is none."""
    return math.inf if row.owner.deadline is None else row.owner.deadline


def urgency(row: Row) -> tuple[bool, float]:
    """Less is more urgent: online before bulk, then by deadline."""
    return row.owner.bulk, deadline_of(row)
