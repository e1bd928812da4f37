"""The live view over real metrics ports: rates, quantiles, restarts, and members that are away."""

from collections.abc import Iterator

import pytest

from penstock.ops.top.fleet import Fleet as View
from penstock.ops.top.fleet import Window
from penstock.ops.top.scrape import BadAddress, NoAnswer, SampleKey, normalized, scrape
from tests.ops.top.fleet_of_members import Clock, Fleet, Member, Port


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet(Member(), Member()) as made:
        yield made


def looked(view: View, clock: Clock, seconds: float = 1.0) -> View:
    clock.now_s += seconds
    view.look()
    return view


@pytest.fixture
def view(fleet: Fleet, clock: Clock) -> View:
    return looked(View([fleet.port.address], scrape, clock), clock)


def test_rates_and_latencies_are_of_the_time_between_two_looks(fleet: Fleet, view: View, clock: Clock) -> None:
    assert [row.figures.get("req/s") for row in view.rows()] == [None, None]
    one = fleet.members[0]
    one.answer(90, 0.004, cached=40)
    one.answer(10, 0.2, tokens=50)
    one.reject(4)
    one.metrics.show_load(1.5, 0.1, 0.2)
    one.lag = {("topic", "0"): 7, ("topic", "1"): 5}
    one.dead_letters = {("kept",): 2, ("lost",): 1}
    first, second = [row.figures for row in looked(view, clock, 2.0).rows()]
    assert first.get("req/s") == pytest.approx(52.0)
    assert first.get("seq/s") == pytest.approx(50.0)
    assert first.get("tok/s") == pytest.approx(500.0)
    assert first.get("batch") == pytest.approx(30.0)
    assert first.get("p50") == pytest.approx(0.0025 + 0.0025 * 50 / 90)
    assert first.get("p99") == pytest.approx(0.15 + 0.1 * 9 / 10)
    assert first.get("cache") == pytest.approx(0.4)
    assert first.get("err/s") == pytest.approx(2.0)
    assert (first.get("backlog"), first.get("lag"), first.get("dead"), first.get("queue")) == (1.5, 12.0, 3.0, 0.0)
    assert (second.get("req/s"), second.get("p50"), second.get("cache"), second.get("lag")) == (0.0, None, None, None)


def test_the_total_adds_members_and_merges_their_latencies(fleet: Fleet, view: View, clock: Clock) -> None:
    for number, member in fleet.members.items():
        member.answer(100, (0.004, 0.04)[number])
        member.metrics.show_load((0.5, 2.0)[number], 0.1, 0.2)
        member.lag = {("topic", str(number)): 10}
    total = looked(view, clock).total()
    assert (total.get("req/s"), total.get("lag"), total.get("backlog")) == (200.0, 20.0, 2.0)
    assert total.get("p50") == pytest.approx(0.005)
    assert total.get("p99") == pytest.approx(0.025 + 0.025 * 0.98)
    assert view.states == {"serving": 2, "restarting": 0}
    assert list(view.rates) == [200.0]


def test_rates_are_of_the_last_ten_seconds(fleet: Fleet, view: View, clock: Clock) -> None:
    fleet.members[0].answer(100)
    for second in range(10):
        figures = looked(view, clock).rows()[0].figures
        assert figures.get("req/s") == pytest.approx(100 / (second + 1))
    assert looked(view, clock).rows()[0].figures.get("req/s") == 0.0


def test_a_member_that_disappears_is_gone_and_comes_back_with_counters_from_zero(
    fleet: Fleet, view: View, clock: Clock
) -> None:
    fleet.members[1].answer(1000)
    looked(view, clock)
    fleet.remove(1)
    fleet.collector.count_restart(1, "signal")
    rows = looked(view, clock, 3.0).rows()
    assert [(row.name, row.state, view.now_s - row.seen_s) for row in rows] == [("0", "up", 0.0), ("1", "gone", 3.0)]
    assert (rows[1].figures.get("req/s"), rows[1].figures.get("restarts")) == (None, 1.0)
    assert view.total().get("req/s") == 0.0
    fleet.add(1, Member())
    fleet.members[1].answer(30)
    row = looked(view, clock, 7.0).rows()[1]
    assert (row.state, row.figures.get("restarts")) == ("up", 1.0)
    assert row.figures.get("req/s") == pytest.approx(30 / 10)


def test_a_member_that_another_has_replaced_is_not_shown(fleet: Fleet, view: View, clock: Clock) -> None:
    fleet.members[1].answer(1000)
    looked(view, clock)
    fleet.remove(1)
    fleet.collector.count_restart(1, "signal")
    fleet.add(2, Member())  # it stood by
    looked(view, clock)
    assert [(row.name, row.state) for row in view.rows()] == [("0", "up"), ("2", "up")]
    assert view.total().get("restarts") == 1.0
    fleet.remove(0)
    assert [(row.name, row.state) for row in looked(view, clock).rows()] == [("0", "gone"), ("1", "gone"), ("2", "up")]


def test_a_member_that_was_never_seen_is_down(fleet: Fleet, clock: Clock) -> None:
    fleet.remove(1)
    view = looked(View([fleet.port.address], scrape, clock), clock)
    assert [(row.name, row.state) for row in view.rows()] == [("0", "up"), ("1", "down")]


def test_several_addresses_of_which_one_stops_answering(fleet: Fleet, clock: Clock) -> None:
    alone = Member("intents")
    place = f"127.0.0.1:{alone.port.number}"
    view = looked(View([fleet.port.address, alone.port.address], scrape, clock), clock)
    assert [row.name.split()[-1] for row in view.rows()] == ["0", "1", place]
    assert view.rows()[2].model == "intents"
    alone.port.close()
    assert [row.state for row in looked(view, clock).rows()] == ["up", "up", "gone"]
    assert "does not answer: Connection refused" in view.silent[alone.port.address]


def test_nothing_that_answers_is_an_error(clock: Clock) -> None:
    member = Member()
    member.port.close()
    with pytest.raises(NoAnswer, match=f"127.0.0.1:{member.port.number}/metrics does not answer: Connection refused"):
        View([member.port.address], scrape, clock).look()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("9100", "http://127.0.0.1:9100/metrics"),
        (":9100", "http://127.0.0.1:9100/metrics"),
        ("gpu-1:9100", "http://gpu-1:9100/metrics"),
        ("http://gpu-1:9100/", "http://gpu-1:9100/metrics"),
        ("https://gpu-1/penstock/metrics", "https://gpu-1/penstock/metrics"),
        ("[::1]:9100", "http://[::1]:9100/metrics"),
    ],
)
def test_addresses(given: str, expected: str) -> None:
    assert normalized(given) == expected


@pytest.mark.parametrize("given", ["", "host:port", "file:///etc/passwd", "host:99999", "http://"])
def test_no_addresses(given: str) -> None:
    with pytest.raises(BadAddress, match="HOST:PORT"):
        normalized(given)


def test_a_port_of_another_program() -> None:
    from prometheus_client import CollectorRegistry, Counter

    registry = CollectorRegistry()
    Counter("other_things", "Of another program.", registry=registry).inc()
    port = Port(registry)
    with pytest.raises(NoAnswer, match="no metric of penstock"):
        scrape(port.address)
    port.close()


def test_a_restart_is_seen_by_any_counter() -> None:
    window = Window(10.0)
    fast, slow = SampleKey("fast_total", ()), SampleKey("slow_total", ())
    window.add(0.0, {fast: 100, slow: 5})
    window.add(1.0, {fast: 200, slow: 1})
    assert window.rates() == {fast: 200, slow: 1}
