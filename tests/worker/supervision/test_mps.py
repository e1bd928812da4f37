"""The MPS daemon: started with its own folders, ended with the supervisor; a clear refusal where it is missing."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.worker.supervision import mps
from penstock.worker.supervision.mps import TOGETHER_S, Mode, MpsClients, MpsUnavailable, mps_daemon

AUTO: Mode = "auto"
ON: Mode = "on"


# Runs the daemon until it is killed.
OWNER = """
import signal
from penstock.worker.supervision.mps import mps_daemon
with mps_daemon() as variables:
    print(variables["CUDA_MPS_PIPE_DIRECTORY"], flush=True)
    signal.pause()
"""


def install(folder: Path, script: str) -> None:
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_a_daemon_runs_while_the_members_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, f'echo "$@ $(cat) $CUDA_MPS_PIPE_DIRECTORY" >> {tmp_path}/calls')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with mps_daemon() as variables:
        assert all(Path(directory).is_dir() for directory in variables.values())
        pipes = variables["CUDA_MPS_PIPE_DIRECTORY"]
        assert (tmp_path / "calls").read_text().split() == ["-d", pipes]
    assert (tmp_path / "calls").read_text().split() == ["-d", pipes, "quit", pipes]
    assert not Path(pipes).exists()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_daemon_ends_with_a_process_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, f'echo "$@ $(cat) $CUDA_MPS_PIPE_DIRECTORY" >> {tmp_path}/calls')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/daemon/of/the/operator")
    with subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pipes = owner.stdout.readline().strip()
        owner.kill()
    wait_for(lambda: not Path(pipes).parent.exists())
    assert (tmp_path / "calls").read_text().split() == ["-d", pipes, "quit", pipes]


@pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")  # which ends the daemon
def test_a_daemon_that_is_slow_to_end_delays_the_stop_no_longer_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = tmp_path / "may_end"
    install(tmp_path, f'[ "$1" = -d ] || while [ ! -e {may_end} ]; do sleep 0.02; done')
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(mps, "_QUIT_S", 0.1)
    with mps_daemon() as variables:
        folder = Path(variables["CUDA_MPS_PIPE_DIRECTORY"]).parent
    assert folder.exists()
    may_end.touch()
    wait_for(lambda: not folder.exists())


def test_a_daemon_that_is_missing_or_fails_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MpsUnavailable, match="not installed"), mps_daemon():
        pass
    install(tmp_path, "exit 1")
    with pytest.raises(MpsUnavailable, match="does not start"), mps_daemon():
        pass


def entered(stack: ExitStack, mode: Mode) -> MpsClients:
    clients = MpsClients(mode)
    clients.enter(stack)
    return clients


def test_members_run_without_a_daemon_that_is_not_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with ExitStack() as stack:
        with capture_logs() as logs:
            assert entered(stack, "auto").variables == {}
        assert [event["event"] for event in logs] == ["mps_unavailable"]
        with pytest.raises(MpsUnavailable):
            entered(stack, "on")
        install(tmp_path, "exit 0")
        assert entered(stack, "off").variables == {}
        for mode in AUTO, ON:
            assert Path(entered(stack, mode).variables["CUDA_MPS_LOG_DIRECTORY"]).is_dir()


def test_a_daemon_of_the_machine_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    install(tmp_path, "exit 1")
    with ExitStack() as stack, capture_logs() as logs:
        assert entered(stack, "auto").variables == {}
    assert logs == []


@pytest.mark.parametrize(
    ("mode", "deaths", "is_given_up"),
    [
        (AUTO, [("gpu 0", 1.0), ("gpu 0", 1.0 + TOGETHER_S)], True),
        (AUTO, [("gpu 0", 1.0), ("gpu 0", 1.1 + TOGETHER_S)], False),
        (AUTO, [("gpu 0", 1.0), ("gpu 1", 1.0)], False),
        (ON, [("gpu 0", 1.0), ("gpu 0", 1.0)], False),
    ],
)
def test_members_that_die_together_are_isolated_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Mode, deaths: list[tuple[str, float]], is_given_up: bool
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    install(tmp_path, "exit 0")
    with ExitStack() as stack:
        clients = entered(stack, mode)
        for device, now_s in deaths:
            clients.on_death(device, now_s)
        assert (clients.variables == {}) is is_given_up


def test_members_that_do_not_start_with_the_service_may_start_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    install(tmp_path, "exit 0")
    with ExitStack() as stack, capture_logs() as logs:
        clients = entered(stack, AUTO)
        assert clients.on_start_failed("no connection")
        assert clients.variables == {}
        assert clients.on_start_failed("no connection")  # of a member that had started at the same moment
        assert [event["event"] for event in logs] == ["mps_given_up"]
        assert not entered(stack, ON).on_start_failed("no connection")
