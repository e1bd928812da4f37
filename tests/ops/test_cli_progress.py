"""Progress of a bulk job, on an injected clock."""

import re

import pytest
from rich.text import Text

from penstock.ops.cli.jobs.progress import JobScreen, rates
from penstock.producer.files.file_job import BulkResult


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


NOTHING = BulkResult(0, 0, 0.0)


def test_lines_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with JobScreen(NOTHING, 2000, "stalled", clock) as screen:
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
    with JobScreen(NOTHING, None, "stalled", clock) as screen:
        clock.now = 10.0
        screen.show(BulkResult(rows=500, failed=0, seconds=clock.now), 2034)
        screen.tick(answered=500, tokens=6000)
    assert capsys.readouterr().err == "500 of about 2,034 rows, 0 failed, 50 rows/s, 600 tokens/s, 0:00:31 left\n"


def test_says_once_that_nothing_moves(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with JobScreen(NOTHING, None, "Is a worker running?", clock) as screen:
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


def test_a_slow_job_moves_with_every_answer_and_is_not_stalled(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows are written in blocks of 512, which take a minute of a slow model."""
    clock = Clock()
    with JobScreen(BulkResult(100, 0, 0.0, resumed=100), 1000, "No answer for a while.", clock) as screen:
        for second in range(21):
            clock.now = float(second)
            screen.tick(answered=8 * second)
        clock.now = 30.0
        screen.tick(answered=8 * 20)
    assert capsys.readouterr().err.splitlines() == [
        "180 of 1,000 rows, 0 failed, 8.0 rows/s, 0:01:42 left",
        "260 of 1,000 rows, 0 failed, 8.0 rows/s, 0:01:32 left",
        "No answer for a while.",
    ]


def test_inputs_beyond_the_number_of_rows_are_no_rows_and_move_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with JobScreen(BulkResult(0, 0, 0.0), 10, "stalled", clock) as screen:
        for second in range(1, 40):
            clock.now = float(second)
            screen.tick(answered=8 * second)
    said = capsys.readouterr().err
    assert "10 of 10 rows" in said
    assert "stalled" not in said


def test_a_bar_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No block is written yet: the bar shows what is answered, and a message has a line of its own."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    clock = Clock()
    with JobScreen(BulkResult(0, 2, 0.0), 100, "No answer for a while.", clock) as screen:
        clock.now = 0.5
        screen.tick(answered=40, tokens=200)
        clock.now = 10.5
        screen.tick(answered=40, tokens=200)
    shown = capsys.readouterr().err
    assert "40/100" in shown
    assert "3.8 rows/s, 19 tokens/s, 0:00:16 left" in shown
    assert "2 failed" in shown
    assert any(Text.from_ansi(line).plain.strip() == "No answer for a while." for line in re.split(r"[\r\n]", shown))


def test_rates() -> None:
    assert rates(BulkResult(10_000, 0, 2.0), 0) == "5,000 rows/s"
    assert rates(BulkResult(3, 0, 2.0), 17) == "1.5 rows/s, 8.5 tokens/s"
    assert rates(BulkResult(0, 0, 0.0), 0) == "0.0 rows/s"
    assert rates(BulkResult(10_000, 0, 2.0, resumed=9_000), 40_000) == "500 rows/s, 20,000 tokens/s"
