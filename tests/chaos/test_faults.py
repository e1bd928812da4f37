"""A fault that found nothing to act on is recorded as one that did not happen."""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.chaos.broker_faults import BrokerFaults
from penstock.ops.chaos.cache_faults import CacheFaults
from penstock.ops.chaos.faults import Faults
from penstock.ops.chaos.faulty_engine import HANG
from penstock.ops.chaos.member_faults import MemberFaults


class Worker:
    """Stands for a `WorkerCommand`: with these members, and a supervisor if there are any. Its rolls do not end."""

    def __init__(self, *members: int) -> None:
        self.members = members
        self.pid = 1 if members else None
        self.signals: list[signal.Signals] = []

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)

    def limit_files(self, num_bytes: int) -> int:
        return len(self.members)

    def events(self, name: str) -> list[dict[str, Any]]:
        return []


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


async def error_of(kind: str, worker: Any, folder: Path) -> str:
    brokers: Any = BrokerFaults.__new__(BrokerFaults)
    members, cache = MemberFaults(worker, folder, 0.0, roll_s=0.0), CacheFaults(worker, folder / "cache", 0.0)
    faults = Faults(brokers, members, object(), cache)  # type: ignore[arg-type]  # no fault of topics
    await faults.inject([kind], random.Random(1))
    (injected,) = faults.injected
    return injected.error


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("member_killed", "No member ran"),
        ("member_suspended", "No member ran"),
        ("supervisor_killed", "No supervisor ran"),
        ("rolled", "No supervisor ran"),
        ("engine_hung", "No member ran a batch"),
        ("disk_full", "No member ran"),
        ("cache_damaged", "FileNotFoundError"),
    ],
)
async def test_a_fault_without_a_worker_did_not_happen(kind: str, reason: str, tmp_path: Path) -> None:
    assert reason in await error_of(kind, Worker(), tmp_path)
    assert not (tmp_path / HANG).exists()


async def test_a_roll_that_does_not_end_did_not_happen(tmp_path: Path) -> None:
    worker = Worker(1)
    assert "did not finish" in await error_of("rolled", worker, tmp_path)
    assert worker.signals == [signal.SIGHUP]


async def test_a_member_that_has_ended_was_not_killed(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    process.kill()
    process.wait()
    assert "ProcessLookupError" in await error_of("member_killed", Worker(process.pid), tmp_path)


async def test_a_member_that_runs_is_killed(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    assert await error_of("member_killed", Worker(process.pid), tmp_path) == ""
    assert process.wait() == -signal.SIGKILL
