"""Single flight with urgency: equal sequences are computed once, with the class and deadline of the most urgent."""

import math
from collections.abc import Iterable

from penstock.worker.requests.request import PendingRequest, PendingSequence


class SingleFlight:
    """Which sequences share which computation. Pure bookkeeping; called on the worker's event loop only.

    Sequences with equal keys form a flight. While the flight's job is queued, one sequence leads it: the job has the
    leader's class and deadline. A more urgent sequence that joins replaces the leader. After `start` the leader is
    fixed.
    """

    def __init__(self) -> None:
        self._flights: dict[bytes, list[PendingSequence]] = {}
        self._leaders: dict[bytes, PendingSequence] = {}  # of flights whose job is queued

    def join(self, sequences: Iterable[PendingSequence]) -> list[PendingSequence]:
        """Add sequences. Returns those that need a job: one for each flight that is new or has a less urgent leader.

        For each of these the caller then calls `promote`, or `late_with` if its job was rejected.
        """
        candidates: dict[bytes, PendingSequence] = {}
        for sequence in sequences:
            flight = self._flights.get(sequence.key)
            if flight is None:
                self._flights[sequence.key] = [sequence]
                candidates[sequence.key] = sequence
                continue
            flight.append(sequence)
            ahead = candidates.get(sequence.key) or self._leaders.get(sequence.key)
            if ahead is not None and urgency(sequence) < urgency(ahead):
                candidates[sequence.key] = sequence
        return list(candidates.values())

    def promote(self, sequences: Iterable[PendingSequence]) -> list[PendingSequence]:
        """These sequences have queued jobs. Returns the leaders that they replace: the caller removes those jobs."""
        replaced = []
        for sequence in sequences:
            former = self._leaders.get(sequence.key)
            self._leaders[sequence.key] = sequence
            if former is not None:
                replaced.append(former)
        return replaced

    def start(self, leaders: Iterable[PendingSequence]) -> None:
        """The jobs of these leaders have left the queue: planned, rejected or removed."""
        for leader in leaders:
            del self._leaders[leader.key]

    def late_with(self, sequence: PendingSequence, late_s: float) -> list[tuple[PendingSequence, float]]:
        """The sequences of a flight that are late if `sequence` is late by `late_s`, with the lateness of each.

        `sequence` is the first. Sequences that the queued leader's job serves in time are not among them.
        """
        done_at = deadline_of(sequence) + late_s
        late = [(other, done_at - deadline_of(other)) for other in self._unserved(sequence) if other is not sequence]
        return [(sequence, late_s), *[(other, by_s) for other, by_s in late if by_s > 0]]

    def next_leader(self, former: PendingSequence) -> PendingSequence | None:
        """The sequence that needs a job now that `former` has none; None if no sequence of the flight needs one.

        Sequences of failed requests leave the flight here. A flight without sequences ends.
        """
        if former.key not in self._flights:
            return None
        alive = [other for other in self._flights[former.key] if not other.request.is_failed]
        if not alive:
            del self._flights[former.key]
            return None
        self._flights[former.key] = alive
        return min(self._unserved(former), key=urgency, default=None)

    def in_flight(self, *, queued: bool) -> set[PendingRequest]:
        """Requests with sequences in flight; with `queued`, those with a sequence whose job is queued."""
        keys = self._leaders if queued else self._flights
        return {other.request for key in keys for other in self._flights[key]}

    def finish(self, leaders: Iterable[PendingSequence]) -> list[list[PendingSequence]]:
        """End flights. Returns the sequences of each in the order they joined, without those of failed requests."""
        pop = self._flights.pop
        return [[other for other in pop(leader.key) if not other.request.is_failed] for leader in leaders]

    def _unserved(self, sequence: PendingSequence) -> list[PendingSequence]:
        """The sequences of the flight that are more urgent than its leader; all without a leader."""
        leader = self._leaders.get(sequence.key)
        flight = self._flights[sequence.key]
        return flight if leader is None else [other for other in flight if urgency(other) < urgency(leader)]


def deadline_of(sequence: PendingSequence) -> float:
    """The deadline in monotonic seconds; infinite without one."""
    deadline = sequence.request.deadline
    return math.inf if deadline is None else deadline


def urgency(sequence: PendingSequence) -> tuple[bool, float]:
    """The sort key of urgency, most urgent first: online before bulk, then by deadline."""
    return sequence.request.bulk, deadline_of(sequence)
