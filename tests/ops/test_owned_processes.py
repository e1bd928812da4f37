"""Processes and folders that a command makes for itself: none outlives it for long, whenever it is killed."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from penstock.ops.demo.worker_child import WorkerProcess
from penstock.ops.kafka.owned import OwnedFolder

# Killed by itself at the moment at which the guard would start.
OWNER = """
import asyncio, os, signal, subprocess, sys
from pathlib import Path
from penstock.ops.demo.worker_child import WorkerProcess
started = subprocess.Popen
class Popen(started):
    def __init__(self, command, *rest, **options):
        if "kill -9" in " ".join(command):
            os.kill(os.getpid(), signal.SIGKILL)
        super().__init__(command, *rest, **options)
        print(self.pid, flush=True)
subprocess.Popen = Popen
async def main():
    async with WorkerProcess(["--model", "null", "--bootstrap-servers", "127.0.0.1:1"], Path(sys.argv[1])):
        pass
asyncio.run(main())
"""
HANGS = """
import os, signal, sys, time
from pathlib import Path
from penstock.ops.cli.terminal import exit_code_of, say
def body():
    try:
        say("ready")
        if len(sys.argv) > 2:
            os.kill(os.getpid(), signal.SIGHUP)
        while len(sys.argv) == 2:
            time.sleep(0.01)  # again and again: Python sees a signal that came just before a long sleep after it only
        return 0
    finally:
        say("cleaning up")
        Path(sys.argv[1]).write_text("clean")
sys.exit(exit_code_of(body))
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_worker_whose_owner_is_killed_before_it_has_a_guard_does_not_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path / "log")]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == -signal.SIGKILL, done.stderr
    worker = int(done.stdout)
    ends = time.monotonic() + 60.0
    try:
        while is_alive(worker):
            assert time.monotonic() < ends
            time.sleep(0.02)
    finally:
        if is_alive(worker):
            os.kill(worker, signal.SIGKILL)
    assert (tmp_path / "log").read_text() == ""


def test_the_folder_of_a_killed_owner_is_removed_by_the_next(folders: Path) -> None:
    owner = """
import os, signal, sys, tempfile
tempfile.tempdir = sys.argv[1]
from penstock.ops.kafka.owned import OwnedFolder
made = OwnedFolder("a-")
(made.path / "data").write_text("much")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", owner, str(folders)])
    [abandoned] = folders.iterdir()
    OwnedFolder("b-").remove()
    assert abandoned.exists()  # of another prefix
    OwnedFolder("a-").remove()
    assert not abandoned.exists()


def test_a_folder_in_another_place_is_removed_there(folders: Path) -> None:
    memory = folders / "memory"
    memory.mkdir()
    owner = """
import os, signal, sys
from pathlib import Path
from penstock.ops.kafka.owned import OwnedFolder
made = OwnedFolder("a-", Path(sys.argv[1]))
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", owner, str(memory)])
    [abandoned] = memory.iterdir()
    OwnedFolder("a-").remove()
    assert abandoned.exists()
    with OwnedFolder("a-", memory) as made:
        assert list(memory.iterdir()) == [made.path]
    assert not list(memory.iterdir())


def test_the_folder_of_an_owner_that_lives_is_kept(folders: Path) -> None:
    (folders / "a-without-a-lock").mkdir()  # as in the moment after it was made
    (folders / "a-link").symlink_to(folders)
    with OwnedFolder("a-") as one, OwnedFolder("a-") as other:
        assert one.path.exists()
        assert other.path.exists()
    assert sorted(path.name for path in folders.iterdir()) == ["a-link", "a-without-a-lock"]


@pytest.mark.usefixtures("sighup")
@pytest.mark.parametrize("is_closed", [True, False])
def test_a_command_whose_terminal_is_closed_cleans_up(tmp_path: Path, is_closed: bool) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", HANGS, str(tmp_path / "marker")])
    said = b""
    while b"ready" not in said:
        said += os.read(terminal, 1024)
    if is_closed:
        os.close(terminal)  # the kernel sends SIGHUP
    else:
        os.kill(pid, signal.SIGHUP)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert (tmp_path / "marker").read_text() == "clean"
    if not is_closed:
        rest = b""
        with contextlib.suppress(OSError):  # EIO: that was all
            while more := os.read(terminal, 1024):
                rest += more
        assert b"Stopped." in rest
        os.close(terminal)


def test_under_nohup_a_command_is_not_hung_up(tmp_path: Path) -> None:
    command = ["nohup", sys.executable, "-c", HANGS, str(tmp_path / "marker"), "hangs itself up"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_lines_of_the_workers_log_that_are_no_events_are_passed_over(tmp_path: Path) -> None:
    lines = ["{not json}", "[" * 10, '{"a": ' * 100_000 + "}", '{"event": "partitions_assigned"}', '{"cut', "3"]
    log = tmp_path / "worker.jsonl"
    log.write_text("\n".join(lines))
    assert WorkerProcess([], log).events() == [{"event": "partitions_assigned"}]
