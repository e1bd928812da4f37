"""The MPS daemon: started with its own folders, ended with the supervisor; a clear refusal where it is missing."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.worker.supervision.mps import MpsUnavailable, enter_mps, mps_daemon


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


def test_a_daemon_that_is_missing_or_fails_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MpsUnavailable, match="not installed"), mps_daemon():
        pass
    install(tmp_path, "exit 1")
    with pytest.raises(MpsUnavailable, match="does not start"), mps_daemon():
        pass


def test_members_run_without_a_daemon_that_is_not_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with ExitStack() as stack:
        with capture_logs() as logs:
            assert enter_mps(stack, is_required=False) == {}
        assert [event["event"] for event in logs] == ["mps_unavailable"]
        with pytest.raises(MpsUnavailable):
            enter_mps(stack, is_required=True)
        install(tmp_path, "exit 0")
        assert Path(enter_mps(stack, is_required=False)["CUDA_MPS_LOG_DIRECTORY"]).is_dir()
