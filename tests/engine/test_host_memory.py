"""Free memory of the host: of the machine, or of a control group that has less."""

from pathlib import Path

import pytest

from penstock.engine import host_memory
from penstock.engine.host_memory import free_host_bytes


def test_memory_of_a_control_group_of_version_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text("5000000\n")
    (folder / "memory.usage_in_bytes").write_text("3000000\n")
    (folder / "memory.stat").write_text("inactive_file 7\ntotal_inactive_file 1000\n")
    monkeypatch.setattr(host_memory, "_CGROUP", tmp_path)
    assert free_host_bytes() == 2_001_000


def test_memory_of_this_machine() -> None:
    free = free_host_bytes()
    assert free is not None
    assert free > 1 << 20
