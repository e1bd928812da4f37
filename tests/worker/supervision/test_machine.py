"""Cores, GPUs and memory of a machine, as nvidia-smi and the kernel say."""

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from penstock.worker.supervision import machine
from penstock.worker.supervision.machine import free_gpu_bytes, resident_bytes, this_machine

LISTED = "0, GPU-aa11, NVIDIA H200, 140000\n1, GPU-bb22, NVIDIA H200, 1024\n2, GPU-bb33, NVIDIA H200, [N/A]\n"


def install(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with three GPUs."""
    install(tmp_path, f"cat <<END\n{LISTED}END", monkeypatch)


@pytest.mark.usefixtures("nvidia_smi")
@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, ["GPU-aa11", "GPU-bb22", "GPU-bb33"]),
        ("", []),
        ("2,0", ["GPU-bb33", "GPU-aa11"]),
        ("GPU-bb2, GPU-aa11", ["GPU-bb22", "GPU-aa11"]),
        ("0,7,1", ["GPU-aa11"]),
        ("GPU-bb", []),  # names two
        ("MIG-5", ["MIG-5"]),
    ],
)
def test_visible_gpus_are_those_that_cuda_would_show(visible: str | None, uuids: list[str]) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [gpu.uuid for gpu in this_machine(environment).gpus] == uuids


@pytest.mark.usefixtures("nvidia_smi")
def test_free_memory_of_a_gpu_is_known_where_the_driver_says_it() -> None:
    assert free_gpu_bytes("GPU-bb22") == 1 << 30
    assert free_gpu_bytes("GPU-bb33") is None
    assert free_gpu_bytes("MIG-5") is None


def test_a_machine_without_nvidia_smi_has_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert this_machine({}).gpus == ()


def test_a_driver_without_devices_has_no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "echo 'No devices were found'", monkeypatch)
    assert this_machine({}).gpus == ()


def test_a_driver_that_fails_is_named_and_the_gpus_that_it_lists_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, f"cat <<END\n{LISTED}END\necho 'GPU 3 is lost' >&2; exit 15", monkeypatch)
    with capture_logs() as events:
        assert len(this_machine({}).gpus) == 3
    (event,) = events
    assert (event["event"], event["reason"], event["exit_code"]) == ("nvidia_smi_failed", "GPU 3 is lost", 15)


def test_hyperthreads_of_a_core_are_neighbours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sockets of two cores, numbered as Linux does: first one thread of each core."""
    for cpu in range(8):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(f"{cpu % 4 // 2}\n")
        (topology / "core_id").write_text(f"{cpu % 2}\n")
    monkeypatch.setattr(machine, "_CPUS", tmp_path)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert this_machine({}).cpus == (0, 4, 1, 5, 2, 6, 3, 7)


def test_cores_are_those_that_this_process_may_use() -> None:
    assert set(this_machine({}).cpus) == os.sched_getaffinity(0)


def test_memory_of_a_process() -> None:
    assert resident_bytes(os.getpid()) > 1 << 20
    assert resident_bytes(2**22 + 1) == 0
