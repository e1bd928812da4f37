"""Turns on a device: processes run batches one at a time there, whatever becomes of one of them."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.engine.turns import DeviceTurns

# A process whose lanes run batches of 10 ms on a device. It prints when each began on the device and ended there.
MEMBER = """
import asyncio, json, sys, time
import numpy as np
from penstock.engine import EngineLanes, NullEngine
from penstock.engine.types import BatchOutput, PackedBatch, TaskOptions

class Engine:
    info = NullEngine().info
    free_at = 0.0
    def idle(self): return None
    def run(self, batch): return self.start(batch).result()
    def start(self, batch): return Running(self)

class Running:
    def __init__(self, engine):
        self.begin = max(time.monotonic(), engine.free_at)
        self.end = engine.free_at = self.begin + 0.010
    def result(self):
        time.sleep(max(0.0, self.end - time.monotonic()))
        return BatchOutput([], self.end - self.begin)

async def main(seconds):
    lanes = EngineLanes(Engine(), device="gpu")
    batch = PackedBatch(np.zeros(1, np.int32), np.array([0, 1], np.int32), 1, None, [TaskOptions("embed")])
    until = time.monotonic() + seconds
    async def caller():
        while time.monotonic() < until:
            output = await lanes.submit(batch, 0.010)
            print(json.dumps([time.monotonic(), output.device_s, output.wait_s]), flush=True)
    await asyncio.gather(caller(), caller())
    await lanes.close()
asyncio.run(main(float(sys.argv[1])))
"""


class Member:
    """A process that runs `MEMBER`."""

    def __init__(self, seconds: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(seconds)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.first = json.loads(self.process.stdout.readline())

    def batches(self) -> list[list[float]]:
        """End, device seconds and wait of each, until the process has ended."""
        told, _ = self.process.communicate(timeout=30)
        return [self.first, *(json.loads(line) for line in told.splitlines())]

    def end(self) -> None:
        self.process.kill()
        with self.process:
            pass


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


@pytest.fixture
def turns() -> Iterator[DeviceTurns]:
    made = DeviceTurns("gpu")
    yield made
    made.close()


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator["OtherProcess"]:
    made = OtherProcess(monkeypatch)
    yield made
    made.turns.close()


class OtherProcess:
    """Turns under another process id."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns = DeviceTurns("gpu")
        self._monkeypatch = monkeypatch

    def reserve(self, device_s: float) -> object:
        with self._monkeypatch.context() as patch:
            patch.setattr("penstock.engine.turns.os.getpid", lambda: 1)
            return self.turns.reserve(device_s)


def waited_s(turns: DeviceTurns, device_s: float = 0.01) -> float:
    """Seconds until a batch of this process may begin."""
    begun = time.monotonic()
    turns.wait(turns.reserve(device_s))
    return time.monotonic() - begun


def test_a_batch_waits_for_those_of_another_process(turns: DeviceTurns, other: OtherProcess) -> None:
    other.reserve(0.05)
    other.reserve(0.05)
    assert waited_s(turns) >= 0.095


def test_a_batch_does_not_wait_for_its_own_process(turns: DeviceTurns) -> None:
    assert waited_s(turns, 60.0) < 1.0
    assert waited_s(turns, 60.0) < 1.0


def test_a_process_comes_behind_one_that_came_before_its_next_batch(turns: DeviceTurns, other: OtherProcess) -> None:
    first = turns.reserve(0.02)
    other.reserve(0.05)
    second = turns.reserve(0.02)
    assert (first.is_next, second.is_next) == (True, False)
    assert second.begin == pytest.approx(first.begin + 0.07)


def test_a_batch_that_ends_early_or_late_moves_those_behind_it(turns: DeviceTurns, other: OtherProcess) -> None:
    for late_s in (-0.2, 0.05):
        first = turns.reserve(0.3)
        other.reserve(0.01)
        third = turns.reserve(0.01)
        begun = time.monotonic()
        turns.settle(first, first.begin + 0.3 + late_s)
        turns.wait(third)
        assert time.monotonic() - begun == pytest.approx(0.31 + late_s, abs=0.05)
        time.sleep(0.02)


def test_a_delay_moves_the_turns_behind_it_once(turns: DeviceTurns, other: OtherProcess) -> None:
    """A batch that ends late because the one ahead of it did is not late itself."""
    first, second = turns.reserve(0.1), turns.reserve(0.1)
    other.reserve(0.1)
    turns.settle(first, first.begin + 0.1 + 0.04)
    turns.settle(second, second.begin + 0.1 + 0.04)
    assert turns.reserve(0.1).begin == pytest.approx(first.begin + 0.34)


def test_a_damaged_file_stops_nothing(turns: DeviceTurns, tmp_path: Path) -> None:
    (tmp_path / "penstock" / "device-gpu").write_bytes(b"\xff" * 24)
    assert waited_s(turns) < 1.0


def test_a_process_that_is_suspended_with_the_lock_is_passed(turns: DeviceTurns, other: OtherProcess) -> None:
    with other.turns._locked():
        assert waited_s(turns) < 1.0


def test_without_a_place_for_files_there_are_turns_for_this_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    with capture_logs() as events:
        made = DeviceTurns("gpu")
    assert waited_s(made) < 1.0
    made.close()
    assert [event["event"] for event in events] == ["turns_unavailable"]


def test_threads_of_one_process_do_not_disturb_each_other(turns: DeviceTurns) -> None:
    def reserve() -> None:
        for _ in range(500):
            turns.reserve(1e-3)

    begin = turns.reserve(1.0).begin
    threads = [threading.Thread(target=reserve) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert turns.reserve(1.0).begin == pytest.approx(begin + 1.0 + 2000 * 1e-3)


@pytest.mark.slow
def test_processes_share_a_device_evenly_and_without_meeting() -> None:
    members = [Member(2.0) for _ in range(3)]
    found = [member.batches() for member in members]
    begun = max(batches[0][0] for batches in found)  # of the last to start
    until = min(batches[-1][0] for batches in found)
    spans = sorted((end - device_s, end) for batches in found for end, device_s, _ in batches if begun < end < until)
    assert len(spans) >= 0.7 * (until - begun) / 0.010
    counts = [sum(begun < end < until for end, _, _ in batches) for batches in found]
    assert max(counts) - min(counts) <= 0.2 * sum(counts)
    late = [max(0.0, end - begin) for (_, end), (begin, _) in zip(spans, spans[1:], strict=False)]
    assert sorted(late)[len(late) // 2] <= 0.003


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_killed_or_suspended_stops_no_other(number: signal.Signals) -> None:
    victim, left = Member(30.0), Member(1.5)
    try:
        victim.process.send_signal(number)
        batches = left.batches()
        assert left.process.wait(10) == 0
        waits = [wait_s for end, _, wait_s in batches if end > batches[0][0] + 0.5]
        assert len(waits) >= 50
        assert sorted(waits)[len(waits) // 2] <= 0.001  # alone again
    finally:
        victim.end()
