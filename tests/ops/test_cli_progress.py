"""Progress of a bulk job, on an injected clock."""

import pytest

from penstock.ops.cli.jobs.progress import JobScreen, rates
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
            screen.tick(answered=0)
    assert capsys.readouterr().err.splitlines() == [
        "500 of 2,000 rows, 10 failed, 50 rows/s, 0:00:30 left",
        "1,000 of 2,000 rows, 20 failed, 50 rows/s, 0:00:20 left",
    ]


def test_an_estimated_total(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with JobScreen(None, "stalled", clock) as screen:
        clock.now = 10.0
        screen.show(BulkResult(rows=500, failed=0, seconds=clock.now), 6000, 2034)
    assert capsys.readouterr().err == "500 of about 2,034 rows, 0 failed, 50 rows/s, 600 tokens/s, 0:00:31 left\n"


def test_says_once_that_nothing_moves(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with JobScreen(None, "Is a worker running?", clock) as screen:
        for second in range(30):
            clock.now = float(second)
            screen.tick(answered=0)
        screen.show(BulkResult(1, 0, clock.now))
        clock.now = 35.0
        screen.tick(answered=0)
        clock.now = 45.0
        screen.tick(answered=0)
    assert capsys.readouterr().err.splitlines() == [
        "Is a worker running?",
        "1 rows, 0 failed, 0.0 rows/s",
        "Is a worker running?",
    ]


def test_a_slow_job_whose_answers_come_is_not_stalled(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows are written in blocks of 512, which take a minute of a slow model."""
    clock = Clock()
    with JobScreen(None, "No answer for a while.", clock) as screen:
        for second in range(60):
            clock.now = float(second)
            screen.tick(answered=8 * second)
        assert capsys.readouterr().err == ""
        clock.now = 69.0
        screen.tick(answered=8 * 59)
    assert capsys.readouterr().err.splitlines() == ["No answer for a while."]


def test_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    with JobScreen(100, "stalled") as screen:
        screen.show(BulkResult(40, 2, 0.5), 200)
    shown = capsys.readouterr().err
    assert "40/100" in shown
    assert "80 rows/s, 400 tokens/s" in shown
    assert "2 failed" in shown


def test_rates() -> None:
    assert rates(BulkResult(10_000, 0, 2.0), 0) == "5,000 rows/s"
    assert rates(BulkResult(3, 0, 2.0), 17) == "1.5 rows/s, 8.5 tokens/s"
    assert rates(BulkResult(0, 0, 0.0), 0) == "0.0 rows/s"
    assert rates(BulkResult(10_000, 0, 2.0, resumed=9_000), 40_000) == "500 rows/s, 20,000 tokens/s"
