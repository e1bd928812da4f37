"""A member as a process: its cores are its own, and the supervisor keeps all of its."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.worker.control_socket import control_sockets, setup_packet
from penstock.worker.supervision.member_process import MemberProcess
from penstock.worker.supervision.placement import Placement

VALUES = {"model": "null", "bootstrap_servers": "127.0.0.1:1"}
SETTINGS = {"values": VALUES, "origins": dict.fromkeys(VALUES, "given")}


async def start(placement: Placement, *, is_beside: bool = False) -> MemberProcess:
    return await MemberProcess.start(placement, SETTINGS, {}, 1.0, 2, is_beside=is_beside)


@pytest.mark.slow
async def test_members_that_start_together_get_their_cores_and_the_supervisor_keeps_its_own() -> None:
    own = os.sched_getaffinity(0)
    placements = [Placement(worker, None, None, (cpu,)) for worker, cpu in enumerate(sorted(own))]
    members = await asyncio.gather(*map(start, placements))
    try:
        assert os.sched_getaffinity(0) == own
        for member in members:
            assert await member.loaded(60)
            assert os.sched_getaffinity(member.pid) == set(member.placement.cpus)
    finally:
        for member in members:
            member.kill()
            await member.ended()


@pytest.mark.slow
async def test_a_member_that_loads_beside_others_has_one_core() -> None:
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    member = await start(Placement(0, None, None, cpus), is_beside=True)
    try:
        assert await member.loaded(60)
        assert os.sched_getaffinity(member.pid) == {cpus[-1]}
    finally:
        member.kill()
        await member.ended()


@pytest.mark.slow
async def test_a_thread_that_ends_meanwhile_does_not_keep_the_others_on_their_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = sorted(os.sched_getaffinity(0))[:2]
    member = await start(Placement(0, None, None, (one,)))
    try:
        assert await member.loaded(60)
        threads = os.listdir(f"/proc/{member.pid}/task")
        ended = await asyncio.create_subprocess_exec("true")
        await ended.wait()
        monkeypatch.setattr(os, "listdir", lambda path: [str(ended.pid), *threads])
        member.move((other,))
        assert {frozenset(os.sched_getaffinity(int(thread))) for thread in threads} == {frozenset({other})}
    finally:
        member.kill()
        await member.ended()


def num_open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_process_that_cannot_be_started_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.worker.supervision.member_process.MEMBER", ("/no/such/python",))
    before = num_open_files()
    with pytest.raises(FileNotFoundError):
        await start(Placement(0, None, None, (0,)))
    assert num_open_files() == before


BROKEN = """
import sys
from penstock.worker import process
from penstock.worker.supervision.member import main
process.load = lambda settings: 1 / 0
sys.exit(main())
"""


@pytest.mark.slow
def test_an_error_that_ends_a_member_is_one_event_with_its_number() -> None:
    ours, theirs = control_sockets()
    with ours, theirs:
        ours.send(setup_packet(3, {**SETTINGS, "values": {**VALUES, "log_format": "json"}}, 1.0, 4))
        cpus = ",".join(map(str, os.sched_getaffinity(0)))
        command = [sys.executable, "-c", BROKEN, str(theirs.fileno()), cpus]
        done = subprocess.run(command, pass_fds=(theirs.fileno(),), capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    (event,) = [json.loads(line) for line in done.stderr.splitlines()]
    assert (event["event"], event["worker"], event["level"]) == ("member_failed", 3, "critical")
    assert "ZeroDivisionError" in event["exception"]
    assert event["pid"]
