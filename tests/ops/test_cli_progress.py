"""Progress of a bulk job, on an injected clock."""

import pytest

from penstock.ops.cli.jobs.progress import JobScreen, rate
from penstock.producer.files.file_job import BulkResult


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_lines_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with JobScreen(2000, "stalled", clock) as screen:
        for second in range(1, 26):
            clock.now = float(second)
            screen.show(BulkResult(rows=second * 50, failed=second, seconds=clock.now))
            screen.tick()
    assert capsys.readouterr().err.splitlines() == [
        "500 of 2,000 rows, 10 failed, 50 rows/s, 0:00:30 left",
        "1,000 of 2,000 rows, 20 failed, 50 rows/s, 0:00:20 left",
    ]


def test_says_once_that_nothing_moves(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with JobScreen(None, "Is a worker running?", clock) as screen:
        for second in range(30):
            clock.now = float(second)
            screen.tick()
        screen.show(BulkResult(1, 0, clock.now))
        clock.now = 35.0
        screen.tick()
        clock.now = 45.0
        screen.tick()
    assert capsys.readouterr().err.splitlines() == [
        "Is a worker running?",
        "1 rows, 0 failed, 0.0 rows/s",
        "Is a worker running?",
    ]


def test_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    with JobScreen(100, "stalled") as screen:
        screen.show(BulkResult(40, 2, 0.5))
    shown = capsys.readouterr().err
    assert "40/100" in shown
    assert "80 rows/s" in shown
    assert "2 failed" in shown


def test_rate() -> None:
    assert rate(BulkResult(10_000, 0, 2.0)) == "5,000"
    assert rate(BulkResult(3, 0, 2.0)) == "1.5"
    assert rate(BulkResult(0, 0, 0.0)) == "0.0"
    assert rate(BulkResult(10_000, 0, 2.0, resumed=9_000)) == "500"
