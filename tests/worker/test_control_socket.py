"""The control socket: settings in, reports out, and the end of a member whose supervisor is gone."""

import asyncio
import json
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.worker import process as process_module
from penstock.worker.control_socket import (
    MAX_PACKET_BYTES,
    Report,
    control_sockets,
    read_report,
    setup_packet,
)

MEMBER = """
import socket, sys, time
from penstock.worker.control_socket import SupervisorLink
link = SupervisorLink(socket.socket(fileno=int(sys.argv[1])))
link.report(device=f"{link.worker} {link.settings['model']}")
time.sleep(600)
"""


def start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = control_sockets()
    with theirs:
        command = [sys.executable, "-c", MEMBER, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
    ours.settimeout(60)
    ours.send(setup_packet(3, {"model": "m"}, 5.0, 2))
    return process, ours


@pytest.mark.parametrize("num_read", [0, 1, 2], ids=["no report read", "one unread", "all read"])
def test_a_member_that_is_loading_ends_with_its_supervisor(num_read: int) -> None:
    process, connection = start()
    with connection:
        assert Report(**json.loads(connection.recv(MAX_PACKET_BYTES, socket.MSG_PEEK))) == Report()
        reports = [Report(**json.loads(connection.recv(MAX_PACKET_BYTES))) for _ in range(num_read)]
    assert [report.device for report in reports] == ["", "3 m"][:num_read]
    assert process.wait(60) == 1


def test_a_failure_of_any_length_reaches_the_supervisor() -> None:
    reporter = MEMBER.replace("device=", "failure='x' * 300_000, device=")
    ours, theirs = control_sockets()
    with theirs:
        process = subprocess.Popen([sys.executable, "-c", reporter, str(theirs.fileno())], pass_fds=(theirs.fileno(),))
    with ours:
        ours.settimeout(60)
        ours.send(setup_packet(3, {"model": "m"}, 5.0, 2))
        reports = [read_report(ours.recv(MAX_PACKET_BYTES)) for _ in range(2)]
    process.wait(60)
    assert reports[1] is not None
    assert set(reports[1].failure) == {"x"}
    assert reports[1].device == "3 m"


@pytest.mark.parametrize("packet", [b"", b"{", b"[]", b"\xff", b'{"phase": "loa'])
def test_a_packet_that_is_no_report_is_left_out(packet: bytes) -> None:
    assert read_report(packet) is None


def test_a_report_of_another_version_is_read_as_far_as_it_is_known() -> None:
    assert read_report(b'{"phase": "joined", "mood": "good"}') == Report(phase="joined")


def test_settings_that_fit_no_packet_are_refused() -> None:
    with pytest.raises(ValueError, match="at most"):
        setup_packet(0, {"reply_topics": "x" * MAX_PACKET_BYTES}, 5.0, 2)


@pytest.mark.parametrize(
    "packet", [b'{"metrics_port": "x"}', b'{"phase": "asleep"}', b'{"phase": []}', b'{"failure": 5}', b"[" * 60_000]
)
def test_a_report_of_wrong_types_is_none(packet: bytes) -> None:
    assert read_report(packet) is None


async def test_a_member_pings_until_it_has_joined_and_says_so_once_a_ping(monkeypatch: pytest.MonkeyPatch) -> None:
    assigned, pinged, joined = asyncio.Event(), asyncio.Event(), asyncio.Event()
    reports: list[dict[str, object]] = []  # that say something

    def report(**changes: object) -> None:
        assert not joined.is_set()
        if not changes:
            pinged.set()
            return
        reports.append(changes)
        joined.set()

    monkeypatch.setattr(process_module, "PING_EVERY_S", 0.0)
    supervisor: Any = SimpleNamespace(report=report)
    worker: Any = SimpleNamespace(consumer=SimpleNamespace(assigned=assigned, member_id="m-1", denied="requests"))
    pinging = asyncio.create_task(process_module._report(supervisor, worker))
    async with asyncio.timeout(300):
        await pinged.wait()
        monkeypatch.setattr(process_module, "PING_EVERY_S", 3600.0)
        assigned.set()
        await joined.wait()
        for _ in range(5):
            await asyncio.sleep(0)
    assert reports == [{"phase": "joined", "member_id": "m-1", "denied": "requests"}]
    assert not pinging.done()
    pinging.cancel()
