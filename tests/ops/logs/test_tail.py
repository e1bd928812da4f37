"""The end of logs, and what is added to them."""

import gzip
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from penstock.ops.logs.lines.filters import parse_filters
from penstock.ops.logs.lines.tail import Tail
from tests.ops.logs.helpers import HOST_A, HOST_B, NOW_S, batch, line, lines

MakeTail = Callable[..., Tail]


@pytest.fixture
def make_tail() -> Iterator[MakeTail]:
    """Tails that end with the test."""
    with ExitStack() as stack:
        yield lambda *paths, filters=(): stack.enter_context(closing(Tail([str(one) for one in paths], filters)))


class Ended(Exception):
    """The test is over: what Ctrl-C is in a terminal."""


def followed(tail: Tail, *steps: Callable[[], object]) -> list[str]:
    """The events that are found when each step is done before one look."""
    left = list(steps)

    def wait() -> None:
        if not left:
            raise Ended
        left.pop(0)()

    found: list[str] = []
    tail.last(0)
    with suppress(Ended):
        for events in tail.follow(wait):
            found += [event.name for event in events]
    return found


def append(path: Path, text: str) -> Callable[[], object]:
    def write() -> None:
        with path.open("a") as file:
            file.write(text)

    return write


def test_the_last_lines_of_several_logs_by_time(make_tail: MakeTail) -> None:
    expected = sorted([*lines(HOST_A), *lines(HOST_B)], key=lambda one: one["timestamp"])[-15:]
    found = make_tail(HOST_A, HOST_B).last(15)
    assert [event.fields["timestamp"] for event in found] == [one["timestamp"] for one in expected]


def test_filters_hold_for_the_last_lines_and_the_new_ones(make_tail: MakeTail, tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    path.write_text("".join(batch(second) + line("stopped") for second in range(30)))
    filters = parse_filters(["event=stopped"], NOW_S)
    assert [event.name for event in make_tail(path, filters=filters).last(3)] == ["stopped"] * 3
    assert followed(make_tail(path, filters=filters), append(path, batch(31) + line("stopped"))) == ["stopped"]


def test_a_line_is_shown_when_it_is_whole(make_tail: MakeTail, tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    path.write_text(line("first"))
    whole = line("second")
    tail = make_tail(path)
    assert followed(tail, append(path, whole[:30]), append(path, whole[30:]), append(path, "no event\n")) == ["second"]


def test_a_line_that_is_being_written_at_the_start_is_shown_when_it_is_whole(
    make_tail: MakeTail, tmp_path: Path
) -> None:
    """It was lost: its beginning was read as a broken line, and then its end as another."""
    path = tmp_path / "worker.log"
    whole = line("second")
    path.write_text(line("first") + whole[:30])
    assert [event.name for event in make_tail(path).last(9)] == ["first"]
    assert followed(make_tail(path), append(path, whole[30:])) == ["second"]
    path.write_text(line("first") + whole.rstrip())
    assert [event.name for event in make_tail(path).last(9, is_end=True)] == ["first", "second"]


def test_rotation_by_renaming_loses_no_line(make_tail: MakeTail, tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    path.write_text(line("a"))

    def rotate() -> None:
        append(path, line("b"))()  # written between the last look and the rotation
        path.rename(tmp_path / "worker.log.1")

    def begin() -> None:
        path.write_text(line("c"))

    assert followed(make_tail(path), rotate, begin, append(path, line("d"))) == ["b", "c", "d"]


def test_rotation_by_truncation(make_tail: MakeTail, tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    path.write_text(line("a") * 5)

    def truncate() -> None:
        os.truncate(path, 0)
        append(path, line("b"))()

    assert followed(make_tail(path), truncate, append(path, line("c"))) == ["b", "c"]


def test_a_new_log_of_a_directory_is_followed(make_tail: MakeTail, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(line("a"))
    new = tmp_path / "b.log"
    steps = append(new, line("b")), append(new, line("c"))
    assert followed(make_tail(tmp_path), *steps) == ["b", "c"]


def test_logs_that_are_moved_to_another_directory_end_no_tail(make_tail: MakeTail, tmp_path: Path) -> None:
    """As logrotate does with `olddir`: until its next event, the directory has no log."""
    logs, old = tmp_path / "logs", tmp_path / "old"
    logs.mkdir()
    (logs / "a.log").write_text(line("a"))

    def rotate() -> None:
        logs.rename(old)
        logs.mkdir()
        (logs / "a.log").touch()

    assert followed(make_tail(logs), rotate, append(logs / "a.log", line("b"))) == ["b"]


@pytest.mark.parametrize("name", ["worker.log.1.gz", "worker.log.1"])
@pytest.mark.parametrize("stored", [gzip.compress, lambda data: data.decode().encode("utf-16")], ids=["gzip", "utf-16"])
def test_the_end_of_a_log_that_cannot_be_followed_whatever_its_name(
    make_tail: MakeTail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, stored: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr("penstock.ops.logs.lines.tail._END_BYTES", 1000)
    path = tmp_path / name
    path.write_bytes(stored(HOST_A.read_bytes()))
    assert make_tail(path).last(1)[0].name == "stopped"


def test_the_end_of_a_long_log_is_read_from_its_end(make_tail: MakeTail, tmp_path: Path) -> None:
    path = tmp_path / "worker.log"
    path.write_text(line("first") + batch(0) * 8000 + line("last"))
    tail = make_tail(path, filters=parse_filters(["event=first,last"], NOW_S))
    assert [event.name for event in tail.last(5)] == ["last"]
    since = make_tail(path, filters=parse_filters(["event=first,last", "since=2026-11-22"], NOW_S))
    assert [event.name for event in since.last(5)] == ["first", "last"]
