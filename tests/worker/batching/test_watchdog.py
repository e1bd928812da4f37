"""A batch that does not end is noticed after the stated time of the engine, not of the clock."""

import pytest

from penstock.scheduler import LaneBatch
from penstock.worker.batching import watchdog
from penstock.worker.batching.watchdog import BatchWatchdog, EngineHung


class Lanes:
    """A stand-in for LaneDriver, of which the watchdog asks `running`."""

    def __init__(self, *predicted_s: float) -> None:
        self.running = [LaneBatch((1, 2), "lazy", "dp", seconds) for seconds in predicted_s]


def seconds_until_hung(lanes: Lanes, step_s: float = 1.0, steps: int = 1000) -> float | None:
    """After how many looks, `step_s` apart, the watchdog calls."""
    now, hung = 0.0, list[EngineHung]()
    watching = BatchWatchdog(lanes, lambda: now, hung.append)  # type: ignore[arg-type]  # the part that is used
    watching.look()
    for _ in range(steps):
        now += step_s
        if watching.look():
            assert len(hung) == 1
            return now
    assert not hung
    return None


@pytest.mark.parametrize(("predicted_s", "hung_s"), [(0.001, 61.0), (3.0, 61.0), (10.0, 201.0)])
def test_a_batch_hangs_after_a_minute_and_20_times_its_prediction(predicted_s: float, hung_s: float) -> None:
    assert seconds_until_hung(Lanes(predicted_s)) == hung_s


def test_no_batch_hangs_while_none_runs() -> None:
    assert seconds_until_hung(Lanes()) is None


def test_a_pause_of_the_whole_process_counts_for_two_seconds() -> None:
    assert seconds_until_hung(Lanes(0.1), step_s=1000.0) == 31 * 1000.0


def test_batches_that_end_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "HANG_S", 5.0)
    now, hung, lanes = 0.0, list[EngineHung](), Lanes(0.1)
    watching = BatchWatchdog(lanes, lambda: now, hung.append)  # type: ignore[arg-type]  # the part that is used
    for second in range(100):
        now = float(second)
        if second % 4 == 0:
            lanes.running = Lanes(0.1).running
        watching.look()
    assert not hung
