"""Skipped tests are counted in the summary, with the reason and the command that runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skip_summary import skip_lines

ROOT = Path(__file__).parent.parent


def skipped(reason: str, *markers: str) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid="test_it",
        location=("test_it.py", 1, "test_it"),
        keywords=dict.fromkeys(markers, 1),
        outcome="skipped",
        longrepr=("test_it.py", 1, f"Skipped: {reason}"),
        when="setup",
    )


def test_skips_are_counted_by_kind_and_reason() -> None:
    reports = [
        skipped("Maven is not installed", "integration"),
        *[skipped("no CUDA device", "gpu")] * 1500,
        *[skipped("needs the package nvidia-cuda-nvcc-cu12 (extra: dev)")] * 2,
    ]
    assert skip_lines(reports) == [
        "1,500 GPU tests did not run (no CUDA device): make test-gpu",
        "2 tests did not run (needs the package nvidia-cuda-nvcc-cu12 (extra: dev))",
        "1 integration test did not run (Maven is not installed): install Java 17 and Maven, then make test",
    ]
    assert skip_lines([]) == []


@pytest.mark.slow
def test_a_run_without_a_gpu_ends_with_the_command_for_one() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests/gpu/test_pool.py"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 0, done.stdout
    assert "GPU tests did not run (no CUDA device): make test-gpu" in done.stdout
