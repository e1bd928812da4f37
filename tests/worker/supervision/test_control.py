"""The control socket: settings in, reports out, and the end of a member whose supervisor is gone."""

import json
import socket
import subprocess
import sys

import pytest

from penstock.worker.supervision.control import MAX_PACKET_BYTES, Report, control_sockets, setup_packet

MEMBER = """
import socket, sys, time
from penstock.worker.supervision.control import SupervisorLink
link = SupervisorLink(socket.socket(fileno=int(sys.argv[1])))
link.report(device=f"{link.worker} {link.settings['model']}")
time.sleep(60)
"""


def start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = control_sockets()
    with theirs:
        command = [sys.executable, "-c", MEMBER, str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),))
    ours.settimeout(30)
    ours.send(setup_packet(3, {"model": "m"}, 5.0, 2))
    return process, ours


@pytest.mark.parametrize("num_read", [0, 1, 2], ids=["no report read", "one unread", "all read"])
def test_a_member_that_is_loading_ends_with_its_supervisor(num_read: int) -> None:
    process, connection = start()
    with connection:
        assert Report(**json.loads(connection.recv(MAX_PACKET_BYTES, socket.MSG_PEEK))) == Report()
        reports = [Report(**json.loads(connection.recv(MAX_PACKET_BYTES))) for _ in range(num_read)]
    assert [report.device for report in reports] == ["", "3 m"][:num_read]
    assert process.wait(10) == 1
