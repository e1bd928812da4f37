"""Work that does not end is noticed after the stated time of the engine, not of the clock."""

import pytest

from penstock.worker.batching import watchdog
from penstock.worker.batching.watchdog import EngineHung, Watchdog, WorkUnderway
from tests.worker.stepping.manual import CountingRunner, ManualThread


class Watched:
    """A watchdog over what runs, each at a time of its own."""

    def __init__(self, *predicted_s: float) -> None:
        self.now = 0.0
        self.running = [WorkUnderway(key, "A batch", seconds) for key, seconds in enumerate(predicted_s)]
        self.hung: list[EngineHung] = []
        self._watchdog = Watchdog(lambda: self.running, lambda: self.now, self.hung.append)
        self._watchdog.look()

    def look(self, step_s: float = 1.0) -> bool:
        self.now += step_s
        is_hung = self._watchdog.look()
        assert len(self.hung) == is_hung
        return is_hung


def seconds_until_hung(*predicted_s: float, step_s: float = 1.0) -> float | None:
    """After how many looks, `step_s` apart, the watchdog calls."""
    watched = Watched(*predicted_s)
    return next((watched.now for _ in range(1000) if watched.look(step_s)), None)


@pytest.mark.parametrize(
    ("predicted_s", "hung_s"), [((0.001,), 61.0), ((3.0,), 61.0), ((10.0,), 201.0), ((10.0, 0.1), 61.0), ((), None)]
)
def test_work_hangs_after_a_minute_and_20_times_its_prediction(
    predicted_s: tuple[float, ...], hung_s: float | None
) -> None:
    assert seconds_until_hung(*predicted_s) == hung_s


def test_a_pause_of_the_whole_process_counts_for_two_seconds() -> None:
    assert seconds_until_hung(0.1, step_s=1000.0) == 31 * 1000.0


def test_work_that_ends_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "HANG_S", 5.0)
    watched = Watched(0.1)
    for second in range(100):
        if second % 4 == 0:
            watched.running = [WorkUnderway(("batch", second), "A batch", 0.1)]
        assert not watched.look()


def test_the_error_tells_what_hangs() -> None:
    watched = Watched(10.0)
    while not watched.look():
        pass
    assert str(watched.hung[0]) == "A batch has run for 201 s; predicted: 10 s."


def test_a_turn_of_steps_is_work_of_its_own() -> None:
    thread = ManualThread(CountingRunner())
    assert thread.running() == []
    thread.is_running, thread.runner.predicted_s = True, 2.0
    [turn] = thread.running()
    assert (turn.predicted_s, [turn]) == (2.0, thread.running())
    thread.num_turns += 1
    assert thread.running()[0].key != turn.key
