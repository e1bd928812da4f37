"""The wait of an open loop for the time of its next call."""

import asyncio
import signal

import pytest

from penstock.ops.bench.pipeline.alarm import Alarm


class Timer:
    """The process's interval timer, and the clock: it goes off when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 50.0
        self.set_to: asyncio.Queue[float] = asyncio.Queue()
        monkeypatch.setattr(signal, "setitimer", lambda _, seconds: self.set_to.put_nowait(seconds))

    def goes_off(self, now: float) -> None:
        self.now = now
        signal.raise_signal(signal.SIGALRM)


async def test_a_wait_ends_at_its_moment_and_not_at_an_early_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Timer(monkeypatch)
    with Alarm(lambda: timer.now) as alarm:
        waiting = asyncio.create_task(alarm.until(50.0123))
        assert await timer.set_to.get() == pytest.approx(0.0123)
        timer.goes_off(50.0110)
        assert await timer.set_to.get() == pytest.approx(0.0013)
        timer.goes_off(50.0123)
        await waiting
    assert timer.set_to.get_nowait() == 0.0  # nothing rings after the load


async def test_a_moment_that_has_passed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Timer(monkeypatch)
    with Alarm(lambda: timer.now) as alarm:
        await alarm.until(49.0)
        assert timer.set_to.empty()


async def test_calls_that_are_due_within_a_millisecond_are_made_together(monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Timer(monkeypatch)
    with Alarm(lambda: timer.now) as alarm:
        waiting = asyncio.create_task(alarm.until(50.0002))
        assert await timer.set_to.get() == pytest.approx(0.001)
        timer.goes_off(50.001)
        await waiting
        await alarm.until(50.0007)
        assert timer.set_to.empty()
