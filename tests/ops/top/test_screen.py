"""The screen at several widths, the keys, and the command."""

from collections.abc import Iterator
from datetime import datetime
from io import StringIO

import pytest
from rich.console import Console

from penstock.ops.cli.terminal import EXIT_PROBLEM, EXIT_USAGE
from penstock.ops.top.columns import COLUMNS
from penstock.ops.top.fleet import Fleet as Looks
from penstock.ops.top.scrape import scrape
from penstock.ops.top.screen import View, screen, watch
from tests.ops.command_line import penstock
from tests.ops.top.fleet_of_members import Clock, Fleet, Member

NOON = datetime(2026, 1, 31, 12, 0, 0)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with Fleet(Member(), Member()) as made:
        yield made


@pytest.fixture
def looks(fleet: Fleet) -> Looks:
    """Two looks; member 0 has 10 requests a second in between and member 1 has 1,000."""
    clock = Clock()
    made = Looks([fleet.port.address], scrape, clock)
    made.look()
    clock.now_s += 1.0
    fleet.members[0].answer(10, 0.2)
    fleet.members[1].answer(1000, 0.004)
    made.look()
    return made


def text_of(looks: Looks, view: View | None = None, width: int = 160) -> list[str]:
    console = Console(width=width, record=True, file=StringIO())
    console.print(screen(looks, view or View(), NOON, width))
    return console.export_text().splitlines()


def test_a_row_for_each_member_and_one_for_all_together(looks: Looks) -> None:
    lines = text_of(looks)
    assert lines[0].split("  ") == ["penstock", "2 members: 2 serving", "tiny", "12:00:00"]
    head = next(line for line in lines if line.startswith("member"))
    assert all(column.title in head for column in COLUMNS)
    rows = [line.split() for line in lines if line.startswith(("0 ", "1 ", "together"))]
    assert [row[:3] for row in rows] == [["0", "up", "10"], ["1", "up", "1,000"], ["together", "1,010", "1,010"]]


def test_routes_have_rates_failures_lag_and_age_of_all_members_together() -> None:
    with Fleet(Member(), Member()) as fleet:
        first, second = fleet.members[0], fleet.members[1]
        clock = Clock()
        looks = Looks([fleet.port.address], scrape, clock)
        first.enrich("orders", 7, 0.1)
        second.enrich("tickets", 0, 0.0)
        second.metrics.count_route("orders", "ok", 0)
        looks.look()
        clock.now_s += 2.0
        first.enrich("orders", 100, 0.25, lag=30)
        first.metrics.count_route("orders", "passed", 20)
        second.enrich("orders", 60, 75.0, lag=12, failed=20)
        looks.look()
    head, *rows = [line.split() for line in text_of(looks) if line.startswith(("route", "orders", "tickets"))]
    assert head == ["route", "rec/s", "err/s", "failed", "lag", "age"]
    assert rows == [
        ["orders", "100", "10", "20", "42", "1", "min", "15", "s"],
        ["tickets", "0", "0", "0", "0", "0", "s"],
    ]
    assert text_of(looks, width=24)


def test_a_fleet_without_routes_has_no_table_of_them(looks: Looks) -> None:
    assert not any(line.startswith("route") for line in text_of(looks))


@pytest.mark.parametrize("width", [1, 10, 14])
def test_a_terminal_too_narrow_for_a_table_is_no_error(looks: Looks, width: int) -> None:
    looks.rates.extend([1.0, 2.0])
    assert text_of(looks, width=width)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_a_narrow_terminal_shows_fewer_figures_and_breaks_no_line(looks: Looks, width: int) -> None:
    lines = text_of(looks, width=width)
    head = next(line for line in lines if line.startswith("member"))
    assert "req/s" in head
    assert all(len(line) <= width for line in lines)
    assert sum(line.startswith(("0 ", "1 ", "together")) for line in lines) == 3
    assert not any("…" in line for line in lines if line.startswith(("0 ", "1 ", "together", "member")))


def test_sorted_by_a_figure(looks: Looks) -> None:
    lines = text_of(looks, View(sort="req/s"))
    assert [line[0] for line in lines if line[:2] in ("0 ", "1 ")] == ["1", "0"]
    assert any("req/s▼" in line for line in lines)


def test_what_is_wrong_is_said(fleet: Fleet, looks: Looks) -> None:
    fleet.remove(1)
    fleet.states = {"serving": 1, "restarting": 1}
    looks.look()
    lines = text_of(looks)
    assert "1 serving, 1 restarting" in lines[0]
    assert [line.split()[:4] for line in lines if line[:2] == "1 "] == [["1", "gone", "0", "s"]]


def test_keys(fleet: Fleet, looks: Looks) -> None:
    clock, shown = Clock(), Console(width=100, record=True, force_terminal=True, file=StringIO())
    pressed = iter(["s", "p", "", "x", "q"])
    waited: list[float] = []

    def wait(seconds: float) -> str:
        waited.append(seconds)
        clock.now_s += seconds / 2
        return next(pressed)

    watch(looks, shown, 1.0, wait, clock)
    assert waited == [1.0, 0.5, 0.25, 0.125, 0.0625]
    text = shown.export_text()
    assert "sorts (by req/s)" in text
    assert "paused: p goes on" in text


def test_one_screen_for_a_script(fleet: Fleet) -> None:
    code, text = penstock("top", str(fleet.port.number), "--once", "--interval", "0.2")
    assert code == 0, text
    assert "2 members: 2 serving" in text
    assert "q quits" not in text


def test_errors_of_the_command(fleet: Fleet) -> None:
    member = Member()
    member.port.close()
    code, text = penstock("top", "--once", str(member.port.number))
    assert (code, "does not answer" in text, "--metrics-port" in text) == (EXIT_PROBLEM, True, True), text
    assert penstock("top", "host:port")[0] == EXIT_USAGE
    code, text = penstock("top", str(fleet.port.number))
    assert (code, "--once prints one screen" in text) == (EXIT_USAGE, True), text
