"""Bookkeeping of sequences that share a job: what has ended is forgotten."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

from penstock.worker.requests.request import PendingSequence
from penstock.worker.stepping.step_single_flight import StepSingleFlight

MakeSequences = Callable[..., list[PendingSequence]]


def test_sequences_that_have_ended_are_forgotten_long_before_their_deadlines(make_sequences: MakeSequences) -> None:
    flights, ended = StepSingleFlight(), list[weakref.ref[Any]]()
    for number in range(300):
        [flight] = flights.join(make_sequences([1, number], deadline=3600.0)).run
        flights.end(flight.job_id)
        flights.late(0.0)
        ended.append(weakref.ref(flight.leader.token_ids))
    del flight
    gc.collect()
    assert sum(one() is not None for one in ended) < 100


def test_a_deadline_of_a_sequence_in_flight_is_kept_while_others_end(make_sequences: MakeSequences) -> None:
    flights = StepSingleFlight()
    [first] = flights.join(make_sequences([7, 7], deadline=5.0)).run
    for number in range(300):
        [other] = flights.join(make_sequences([1, number], deadline=3600.0)).run
        flights.end(other.job_id)
        assert not flights.late(0.0)
    assert flights.late(6.0) == [(first.leader, 1.0)]
