"""Turns on a device: one process at a time, in order, whatever happens to the one that has the turn."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.engine import turns as turns_module
from penstock.engine.errors import LanesClosed
from penstock.engine.turns import DeviceTurns

# A process that takes a turn for each line of its input, and gives it back at the next.
OTHER = """
import sys
from penstock.engine.turns import DeviceTurns
turns = DeviceTurns("gpu")
for number, line in enumerate(sys.stdin):
    turns.give_back() if number % 2 else turns.take()
    print("done", flush=True)
"""


class Other:
    """Another process that uses the device."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def step(self) -> None:
        """Begin to take the turn, or to give it back."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        """Until that has ended."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "done\n"

    def take(self) -> None:
        self.step()
        self.wait()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def other() -> Iterator[Other]:
    process = Other()
    yield process
    process.end()


@pytest.fixture
def turns() -> Iterator[DeviceTurns]:
    made = DeviceTurns("gpu")
    yield made
    made.close()


@pytest.fixture
def lane() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def is_waiting(taking: "Future[None]", seconds: float = 0.1) -> bool:
    try:
        taking.result(seconds)
    except TimeoutError:
        return True
    return False


def test_a_process_waits_until_the_other_has_given_its_turn_back(
    turns: DeviceTurns, other: Other, lane: ThreadPoolExecutor
) -> None:
    other.take()
    taking = lane.submit(turns.take)
    assert is_waiting(taking)
    other.step()
    taking.result(10)
    other.wait()
    other.step()  # to take it again
    turns.give_back()
    other.wait()


def test_a_process_joins_its_own_turn_while_no_other_waits(
    turns: DeviceTurns, other: Other, lane: ThreadPoolExecutor
) -> None:
    turns.take()
    turns.take()
    other.step()
    wait_until_awaited(turns)
    third = lane.submit(turns.take)
    turns.give_back()
    assert is_waiting(third)  # behind the other process, which waits for the second batch
    turns.give_back()
    other.wait()
    assert is_waiting(third)
    other.step()
    third.result(10)


def test_a_process_that_asks_again_comes_behind_one_that_waits(
    turns: DeviceTurns, other: Other, lane: ThreadPoolExecutor
) -> None:
    """Otherwise the process that gives the turn back would be the next to take it, again and again."""
    turns.take()
    for _ in range(20):
        other.step()
        wait_until_awaited(turns)
        turns.give_back()
        taking = lane.submit(turns.take)
        other.wait()
        assert is_waiting(taking, 0.005)
        other.step()
        taking.result(10)
        other.wait()


def test_the_turn_of_a_process_that_is_killed_ends(turns: DeviceTurns, other: Other, lane: ThreadPoolExecutor) -> None:
    other.take()
    taking = lane.submit(turns.take)
    assert is_waiting(taking)
    other.signal(signal.SIGKILL)
    taking.result(10)


def test_a_suspended_process_does_not_stop_the_others(
    turns: DeviceTurns, other: Other, lane: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns_module, "_OVERDUE_S", 0.2)
    other.take()
    other.signal(signal.SIGSTOP)
    with capture_logs() as events:
        lane.submit(turns.take).result(10)
        turns.give_back()
        lane.submit(turns.take).result(0.1)  # from now on without a wait
        turns.give_back()
    assert [event["event"] for event in events] == ["turn_overdue"]
    other.signal(signal.SIGCONT)
    other.step()
    other.wait()
    other.take()  # the turn that came too late was given back
    assert is_waiting(lane.submit(turns.take))
    other.step()


def test_closing_ends_a_wait(turns: DeviceTurns, other: Other, lane: ThreadPoolExecutor) -> None:
    other.take()
    taking = lane.submit(turns.take)
    assert is_waiting(taking)
    turns.interrupt()
    with pytest.raises(LanesClosed):
        taking.result(10)
    other.step()
    other.wait()
    other.take()  # this process does not keep the turn that it waited for


def test_a_turn_ends_before_its_batch_by_the_time_of_a_hand_over(
    turns: DeviceTurns, other: Other, lane: ThreadPoolExecutor
) -> None:
    turns.take()
    assert not turns.give_back_before(time.monotonic() + 60)  # nobody was met
    turns.give_back()
    for _ in range(50):
        other.take()
        taking = lane.submit(turns.take)
        assert is_waiting(taking, 0.005)
        other.step()
        taking.result(10)
        turns.launched()
        end = time.monotonic() + 0.02
        assert turns.give_back_before(end)
        early_s = end - time.monotonic()
        other.wait()
    _, mean_s = turns._fields()
    assert 0 < mean_s <= 0.002
    assert early_s <= mean_s


def test_without_a_place_for_files_there_are_turns_for_this_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    with capture_logs() as events:
        made = DeviceTurns("gpu")
    made.take()
    made.give_back()
    made.close()
    assert [event["event"] for event in events] == ["turns_unavailable"]


def test_a_damaged_file_is_read_as_no_hand_over(turns: DeviceTurns, tmp_path: Path) -> None:
    (tmp_path / "penstock" / "turn-gpu").write_bytes(b"\xff" * 16)
    turns.take()
    turns.give_back()
    assert turns._fields()[1] == 0.0


def wait_until_awaited(turns: DeviceTurns) -> None:
    until = time.monotonic() + 10
    while not turns._is_awaited():
        assert time.monotonic() < until
        time.sleep(0.001)
