"""Scrapes of ports that answer with nonsense, too much, too slowly, or with what a terminal would obey."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from penstock.ops.top import scrape as scrape_module
from penstock.ops.top.fleet import Fleet
from penstock.ops.top.scrape import NoAnswer, Scrape, read_samples, scrape
from penstock.ops.top.screen import View, screen
from tests.ops.top.fleet_of_members import Clock

BUILD = '# TYPE penstock_build info\npenstock_build_info{model="tiny"} 1\n'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n"


class RawPort:
    """A port that answers each connection with a function's bytes."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._answer = answer
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._server.getsockname()[1]}/metrics"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._server.accept()
                with connection, suppress(OSError):  # the other side closes first
                    connection.recv(65536)
                    self._answer(connection)

    def close(self) -> None:
        self._server.close()


@pytest.fixture
def port() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """Makes ports; gives their addresses."""
    ports: list[RawPort] = []

    def make(answer: Callable[[socket.socket], None]) -> str:
        ports.append(RawPort(answer))
        return ports[-1].address

    yield make
    for one in ports:
        one.close()


def text_of(text: str, looks: int = 2) -> str:
    """The lines that a terminal shows of a port with these metrics."""
    clock = Clock()
    fleet = Fleet(["http://m:1/metrics"], lambda address: read_samples(text, address), clock)
    for _ in range(looks):
        fleet.look()
        clock.now_s += 1.0
    console = Console(width=160, record=True, file=StringIO())
    console.print(screen(fleet, View(), datetime(2026, 1, 31), 160))
    return console.export_text()


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e308", "-5"])
def test_a_sample_that_is_no_count_is_not_known(value: str) -> None:
    text = BUILD
    for name in ("penstock_backlog_seconds", "penstock_queued_sequences", "penstock_consumer_lag_records"):
        text += f"# TYPE {name} gauge\n{name} {value}\n"
    for name in ("penstock_requests", "penstock_dead_letters"):
        text += f'# TYPE {name} counter\n{name}_total{{outcome="ok"}} {value}\n'
    text += f'# TYPE penstock_members gauge\npenstock_members{{state="serving"}} {value}\n'
    shown = text_of(text)
    assert " up " in shown
    assert not any(part in shown.lower() for part in ("nan", "inf", "serving", "00000000", "-5"))


@pytest.mark.parametrize("label", ["", '{le=""}', '{le="soon"}', '{le="NaN"}', '{le="-1"}'])
def test_a_bucket_without_a_bound_is_left_out(label: str) -> None:
    name = "penstock_request_seconds"
    text = f"{BUILD}# TYPE {name} histogram\n{name}_bucket{label} 5\n"
    assert " up " in text_of(text)


def test_a_state_without_a_label_is_left_out() -> None:
    assert " up " in text_of(f"{BUILD}# TYPE penstock_members gauge\npenstock_members 3\n")


def test_labels_cannot_control_the_terminal() -> None:
    escape = "\x1b[2J\x1b]0;owned\x07"
    text = f'# TYPE penstock_build info\npenstock_build_info{{model="{escape}",worker="{escape}"}} 1\n'
    text += f'# TYPE penstock_members gauge\npenstock_members{{state="{escape}"}} 3\n'
    console = Console(width=160, force_terminal=True, file=(shown := StringIO()), color_system=None)
    fleet = Fleet(["http://m:1/metrics"], lambda address: read_samples(text, address), Clock())
    fleet.look()
    console.print(screen(fleet, View(), datetime(2026, 1, 31), 160))
    assert "\x1b[2J" not in shown.getvalue()
    assert "\x1b]0" not in shown.getvalue()
    assert "\x07" not in shown.getvalue()


def test_a_long_label_leaves_room_for_the_rest() -> None:
    text = f'# TYPE penstock_build info\npenstock_build_info{{model="tiny",worker="{"x" * 5000}"}} 1\n'
    assert "req/s" in text_of(text)


def test_an_answer_that_drips_ends_at_the_deadline(
    port: Callable[[Callable[[socket.socket], None]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape_module, "_WITHIN_S", 0.3)

    def drip(connection: socket.socket) -> None:
        while True:  # until the other side gives up
            connection.sendall(b"H")
            time.sleep(0.05)

    def drip_lines(connection: socket.socket) -> None:
        connection.sendall(HEAD)
        while True:
            connection.sendall(b"# a comment\n")
            time.sleep(0.05)

    for answer in (drip, drip_lines):
        with pytest.raises(NoAnswer, match=r"does not answer within 0\.3 s"):
            scrape(port(answer))


def test_an_answer_without_end_is_not_kept(
    port: Callable[[Callable[[socket.socket], None]], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape_module, "_MAX_BYTES", 100_000)

    def flood(connection: socket.socket) -> None:
        connection.sendall(HEAD + BUILD.encode())
        while True:
            connection.sendall(b"# a comment\n" * 1000)

    with pytest.raises(NoAnswer, match="sends more than 100,000 bytes"):
        scrape(port(flood))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 404 Not Found\r\n\r\n", "answers with status 404"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "answers with status 302"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not answer with HTTP"),
        (b"", "does not answer"),
        (HEAD + b"\xff\xfe", "does not answer with metrics"),
        (HEAD + b"hello world, how are you?", "does not answer with metrics"),
        (HEAD.replace(b"\r\n\r\n", b"\r\nContent-Length: 999\r\n\r\n") + BUILD.encode(), "ends its answer too early"),
    ],
)
def test_other_answers_are_errors(
    port: Callable[[Callable[[socket.socket], None]], str], answer: bytes, says: str
) -> None:
    with pytest.raises(NoAnswer, match=says):
        scrape(port(lambda connection: connection.sendall(answer)))


LINES = st.sampled_from(
    [
        "# TYPE penstock_requests counter",
        "# TYPE penstock_members gauge",
        "# TYPE penstock_request_seconds histogram",
        'penstock_members{state="a"} 3',
        'penstock_request_seconds_bucket{le="0.1"} 4',
        'penstock_request_seconds_bucket{le="+Inf"} 3',
        "penstock_requests_total 5",
        'penstock_build_info{model="m",worker="1"} 1',
    ]
)


@given(lines=st.lists(LINES, max_size=8), place=st.integers(0, 400), inserted=st.text(max_size=6))
def test_any_text_is_samples_or_an_error(lines: list[str], place: int, inserted: str) -> None:
    whole = "\n".join(lines)
    text = whole[:place] + inserted + whole[place:] + "\n"
    try:
        found = read_samples(text, "http://m:1/metrics")
    except NoAnswer:
        return
    assert isinstance(found, Scrape)
    with suppress(NoAnswer):  # of a supervisor without members
        text_of(text)
