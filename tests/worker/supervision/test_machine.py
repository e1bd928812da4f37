"""What a machine offers, as nvidia-smi and the kernel say."""

import os
from pathlib import Path

import pytest

from penstock.worker.supervision.machine import free_gpu_bytes, free_host_bytes, resident_bytes, this_machine

LISTED = "0, GPU-aa11, NVIDIA H200, 140000\n1, GPU-bb22, NVIDIA H200, 1024\n2, GPU-bb33, NVIDIA H200, [N/A]\n"


@pytest.fixture
def nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with three GPUs."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<END\n{LISTED}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)


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


def test_cores_are_those_that_this_process_may_use() -> None:
    assert set(this_machine({}).cpus) == os.sched_getaffinity(0)


def test_host_memory() -> None:
    free = free_host_bytes()
    assert free is not None
    assert free > 1 << 20
    assert resident_bytes(os.getpid()) > 1 << 20
    assert resident_bytes(2**22 + 1) == 0
