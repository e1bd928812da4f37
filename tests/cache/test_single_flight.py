"""Single flight: one leader a flight, every follower handed out once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.single_flight import SingleFlight


def test_the_first_to_join_leads_and_the_others_follow_in_order() -> None:
    flights: SingleFlight[str] = SingleFlight()
    assert flights.join(b"k", "first")
    assert not flights.join(b"k", "second")
    assert not flights.join(b"k", "third")
    assert len(flights) == 1
    assert b"k" in flights
    assert flights.finish(b"k") == ["second", "third"]
    assert len(flights) == 0


def test_after_an_end_the_next_to_join_leads_again() -> None:
    flights: SingleFlight[str] = SingleFlight()
    flights.join(b"k", "first")
    assert flights.finish(b"k") == []
    assert flights.join(b"k", "second")


def test_ending_a_flight_twice_is_a_bug() -> None:
    flights: SingleFlight[str] = SingleFlight()
    flights.join(b"k", "first")
    flights.finish(b"k")
    with pytest.raises(KeyError, match="This is a bug"):
        flights.finish(b"k")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["join", "finish"]))))
def test_every_waiter_leads_once_or_is_handed_out_once(steps: list[tuple[str, str]]) -> None:
    flights: SingleFlight[int] = SingleFlight()
    led, handed, in_flight = [], [], set()
    for waiter, (key, step) in enumerate(steps):
        if step == "join":
            leads = flights.join(key, waiter)
            assert leads == (key not in in_flight)
            in_flight.add(key)
            led += [waiter] if leads else []
        elif key in in_flight:
            handed += flights.finish(key)
            in_flight.discard(key)
        assert len(flights) == len(in_flight)
    for key in in_flight:
        handed += flights.finish(key)
    joined = [waiter for waiter, (_, step) in enumerate(steps) if step == "join"]
    assert sorted(led + handed) == joined
