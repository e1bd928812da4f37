"""Faults come in seeded rounds, and one that found nothing to act on is recorded as one that did not happen."""

import asyncio
import itertools
import os
import random
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.chaos.faults import broker_faults, member_faults
from penstock.ops.chaos.faults.faults import KINDS, OF_BROKERS, Faults, Injected, moments
from penstock.ops.chaos.faults.scene import CACHE, Scene
from penstock.ops.chaos.fleet.faulty_engine import HANG

NUM_ACKNOWLEDGED = itertools.count()  # one more at each look


class Worker:
    """Stands for a `WorkerCommand`: with these members, and a supervisor if there are any.

    What its supervisor does when it is signalled is `heeds`; a roll does not end without it.
    """

    def __init__(self, *members: int, heeds: Callable[["Worker"], None] = lambda _: None) -> None:
        self.members = members
        self.pid = 1 if members else None
        self.signals: list[signal.Signals] = []
        self.logged: Counter[str] = Counter(roll_finished=2, roll_failed=1)  # by earlier rolls
        self._heeds = heeds

    def signal(self, number: signal.Signals) -> None:
        self.signals.append(number)
        self._heeds(self)

    def replace_members(self, *members: int) -> None:
        self.members = members
        self.logged["roll_finished"] += 1

    def limit_files(self, num_bytes: int) -> int:
        return len(self.members)

    def num_events(self, name: str) -> int:
        return self.logged[name]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing takes as long as it may beside brokers, and no machine is too busy for a signal to have its effect."""
    monkeypatch.setattr(member_faults, "_CLOCK_S", 0.01)
    monkeypatch.setattr(member_faults, "_ROLL_S", 0.0)
    monkeypatch.setattr(member_faults, "_SIGNALLED_S", 300.0)
    monkeypatch.setattr(broker_faults, "_AWAY_S", 300.0)
    monkeypatch.setattr(broker_faults, "_ANSWER_S", 300.0)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


async def injected(kind: str, worker: Any, folder: Path, brokers: Any = None, outage_s: float = 0.2) -> Injected:
    faults = Faults(Scene(brokers, worker, folder, [], outage_s, 0.2, lambda: next(NUM_ACKNOWLEDGED)))
    await faults.inject([kind], random.Random(1))
    (fault,) = faults.injected
    assert faults.missing([kind]) == ([kind] if fault.error else [])
    return fault


async def error_of(kind: str, worker: Any, folder: Path) -> str:
    return (await injected(kind, worker, folder)).error


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("member_killed", "No member ran"),
        ("member_suspended", "No member ran"),
        ("supervisor_killed", "No supervisor ran"),
        ("rolled", "No supervisor ran"),
        ("engine_hung", "No member ran a batch"),
        ("disk_full", "No member ran"),
        ("clock_stepped", "No member took the time"),
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


async def test_a_roll_lasts_until_the_supervisor_tells_its_end(tmp_path: Path) -> None:
    fault = await injected("rolled", Worker(1, 2, heeds=lambda worker: worker.replace_members(3, 4)), tmp_path)
    assert (fault.error, fault.effect) == ("", {"members_replaced": 2, "members": 2})


@pytest.mark.parametrize(
    ("heeds", "reason"),
    [
        (lambda worker: worker.logged.update(["roll_failed"]), "The roll failed"),
        (lambda worker: setattr(worker, "pid", None), "The supervisor ended"),
        (lambda worker: worker.replace_members(1), "No member was replaced"),
    ],
)
async def test_a_roll_that_ends_otherwise_did_not_happen(heeds: Any, reason: str, tmp_path: Path) -> None:
    assert reason in await error_of("rolled", Worker(1, heeds=heeds), tmp_path)


async def test_a_member_that_has_ended_was_not_killed(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    process.kill()
    process.wait()
    assert "had ended before" in await error_of("member_killed", Worker(process.pid), tmp_path)


async def test_a_member_that_has_ended_and_is_not_reaped_was_not_killed(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    process.kill()
    await asyncio.to_thread(os.waitid, os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert "had ended before" in await error_of("member_killed", Worker(process.pid), tmp_path)


async def test_a_member_that_runs_is_killed(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    fault = await injected("member_killed", Worker(process.pid), tmp_path)
    assert (fault.error, fault.effect) == ("", {"pid": process.pid, "dead": True})
    assert process.wait() == -signal.SIGKILL


async def test_a_member_that_is_suspended_stops_and_goes_on(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    fault = await injected("member_suspended", Worker(process.pid), tmp_path)
    assert (fault.error, fault.effect["then"]) == ("", "resumed")
    process.communicate(b"\n", timeout=300)
    assert process.returncode == 0


async def test_a_full_disk_that_no_member_noticed_was_none(tmp_path: Path) -> None:
    assert "No member wrote" in await error_of("disk_full", Worker(1), tmp_path)


async def test_a_cache_without_bytes_is_not_damaged(tmp_path: Path) -> None:
    (tmp_path / CACHE).touch()
    assert "was empty" in await error_of("cache_damaged", Worker(1), tmp_path)
    (tmp_path / CACHE).write_bytes(bytes(1000))
    assert (await injected("cache_damaged", Worker(1), tmp_path)).effect["bytes_changed"] > 0


class Node:
    """Stands for a broker: a process, and a port at which something may answer."""

    def __init__(self, pid: int, port: int = 1) -> None:
        self.pid: int | None = pid
        self.bootstrap_servers = f"127.0.0.1:{port}"

    def suspend(self) -> None:
        os.kill(self.pid or 0, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid or 0, signal.SIGCONT)

    def kill(self) -> None: ...


class Nodes:
    """Stands for a cluster."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = nodes

    def start(self) -> None: ...


async def test_a_suspended_broker_is_silent(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections are open and get no answer
        fault = await injected("broker_suspended", None, tmp_path, Nodes(Node(process.pid, silent.getsockname()[1])))
    assert (fault.error, fault.effect["unanswered_requests"] > 0) == ("", True)


async def test_a_suspended_broker_that_answers_was_not_suspended(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(1))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        fault = await injected("broker_suspended", None, tmp_path, Nodes(Node(process.pid, port)), outage_s=300.0)
    assert "answers although" in fault.error


async def test_brokers_that_took_records_were_not_leaderless(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    process.kill()
    process.wait()
    fault = await injected("no_leader", None, tmp_path, Nodes(Node(process.pid), Node(process.pid)))
    assert "Brokers took 1 records" in fault.error


async def test_a_broker_that_lives_on_was_not_killed(
    process: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_faults, "_AWAY_S", 0.0)
    assert "does not end" in (await injected("broker_killed", None, tmp_path, Nodes(Node(process.pid)))).error


def rounds(seed: int) -> list[list[str]]:
    """Moments of two rounds."""
    found: list[list[str]] = []
    for together in moments(KINDS, 3, random.Random(seed)):
        found.append([*together])
        if sum(map(len, found)) == 2 * len(KINDS):
            break
    return found


def test_each_kind_comes_alone_and_then_beside_others() -> None:
    found = rounds(seed=1)
    alone, together = found[: len(KINDS)], found[len(KINDS) :]
    assert {len(moment) for moment in alone} == {1}
    assert {2, 3} <= {len(moment) for moment in together} <= {1, 2, 3}  # what is left over may be alone
    assert sorted(itertools.chain(*alone)) == sorted(itertools.chain(*together)) == sorted(KINDS)


def test_no_two_faults_of_brokers_come_together() -> None:
    for seed in range(20):
        assert all(len(OF_BROKERS.intersection(moment)) < 2 for moment in rounds(seed))


def test_what_controllers_undo_does_not_come_while_two_of_three_are_away() -> None:
    of_controllers = {"partitions_added", "replies_refused", "access_revoked"}
    for seed in range(20):
        beside = [set(moment) & of_controllers for moment in rounds(seed) if "no_leader" in moment]
        assert not any(beside)


def test_the_seed_decides() -> None:
    assert rounds(seed=1) == rounds(seed=1) != rounds(seed=2)
