"""A reply partition that acknowledges nothing is told from an outage, stops no other, and gets a bounded share."""

import pytest

from penstock.worker.kafka.backpressure import Backpressure
from penstock.worker.kafka.reply_destinations import Footprint, ReplyDestination

DEAD: ReplyDestination = ("replies", 0, False)
FINE: ReplyDestination = ("replies", 1, False)
ONE = Footprint(1, 100, 1000)


class Worker:
    """Back-pressure of 100 records, and answers that are sent and acknowledged at a time that the test sets."""

    def __init__(self, *, can_stall: bool = True) -> None:
        self.now = 0.0
        self.held = Backpressure(100, lambda: self.now, can_stall=can_stall)

    def send(self, destination: ReplyDestination, count: int = 1) -> None:
        for _ in range(count):
            self.held.add_records(1, ONE.request_bytes, bulk=destination[2])
            self.held.add_reply_bytes(ONE.reply_bytes)
            self.held.destinations.sent(destination, Footprint(1, 100, 1000))

    def acknowledge(self, destination: ReplyDestination, count: int = 1, *, acknowledged: bool = True) -> None:
        for _ in range(count):
            self.held.add_records(-1, -ONE.request_bytes, bulk=destination[2])
            self.held.add_reply_bytes(-ONE.reply_bytes)
            self.held.destinations.ended(destination, ONE, acknowledged=acknowledged)

    def serve_others(self, seconds: int) -> None:
        for _ in range(2 * seconds):
            self.now += 0.5
            self.send(FINE)
            self.acknowledge(FINE)

    @property
    def is_blocked(self) -> bool:
        return self.held.destinations.is_blocked(DEAD)


@pytest.fixture
def worker() -> Worker:
    return Worker()


def test_a_destination_is_blocked_when_it_acknowledges_nothing_for_twenty_seconds_and_has_its_share(
    worker: Worker,
) -> None:
    worker.send(DEAD, 25)
    worker.serve_others(19)  # a failover takes about 10 s
    assert not worker.is_blocked
    worker.serve_others(2)
    assert worker.is_blocked
    assert not worker.held.destinations.is_blocked(FINE)
    worker.acknowledge(DEAD)
    assert not worker.is_blocked


def test_a_destination_below_its_share_waits_for_as_long_as_it_takes(worker: Worker) -> None:
    worker.send(DEAD, 24)
    worker.serve_others(1000)
    assert not worker.is_blocked
    worker.send(DEAD)
    assert worker.is_blocked


def test_after_an_outage_every_destination_has_its_time_again(worker: Worker) -> None:
    worker.send(DEAD, 50)
    worker.send(FINE, 50)
    worker.now += 1000
    worker.acknowledge(FINE)
    assert not worker.is_blocked
    worker.serve_others(19)
    assert not worker.is_blocked
    worker.serve_others(2)
    assert worker.is_blocked


def test_a_refusal_is_no_acknowledgement(worker: Worker) -> None:
    worker.send(DEAD, 30)
    worker.serve_others(30)
    worker.acknowledge(DEAD, acknowledged=False)
    assert worker.is_blocked


def test_a_stalled_destination_that_fills_the_worker_stops_it_for_twenty_seconds(worker: Worker) -> None:
    worker.send(DEAD, 100)
    worker.now += 19.9
    assert worker.held.is_full()
    worker.now += 0.4
    assert not worker.held.is_full()
    assert worker.held.has_room()
    worker.acknowledge(DEAD)
    worker.send(FINE)
    worker.now += 0.3
    assert worker.held.is_full()  # it goes on, so its answers count again


def test_with_stalled_destinations_a_worker_holds_twice_its_bounds_at_most(worker: Worker) -> None:
    worker.send(DEAD, 199)
    worker.now += 21
    assert not worker.held.is_full()
    worker.send(DEAD)
    worker.now += 1
    assert worker.held.is_full()


def test_stalled_bulk_does_not_count_against_bulk(worker: Worker) -> None:
    bulk: ReplyDestination = ("replies", 0, True)
    worker.send(bulk, 50)
    assert worker.held.is_full(bulk=True)
    worker.now += 21
    assert not worker.held.is_full(bulk=True)


def test_answers_that_wait_for_others_stall_no_destination() -> None:
    """As those of a transaction, which wait for the first record of their partition."""
    worker = Worker(can_stall=False)
    worker.send(DEAD, 100)
    worker.now += 100
    assert not worker.held.destinations.is_blocked(DEAD)
    assert worker.held.is_full()
