"""Where a measured broker keeps its records."""

from pathlib import Path

import pytest

from penstock.ops.bench.pipeline import broker_folder as module
from penstock.ops.bench.pipeline.broker_folder import broker_folder
from penstock.ops.kafka import BrokerCluster, KafkaBroker


def test_a_broker_has_its_records_in_memory_if_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MEMORY", tmp_path)
    monkeypatch.setattr(module, "_ROOM_BYTES", 1)
    assert broker_folder() == tmp_path
    monkeypatch.setattr(module, "_ROOM_BYTES", 1 << 60)
    assert broker_folder() is None
    monkeypatch.setattr(module, "_ROOM_BYTES", 1 << 20)
    for free_bytes, chosen in ((1 << 20, tmp_path), ((1 << 20) - 1, None), (None, None)):
        monkeypatch.setattr(module, "free_host_bytes", lambda free_bytes=free_bytes: free_bytes)
        assert broker_folder() == chosen
    monkeypatch.setattr(module, "_MEMORY", tmp_path / "missing")
    assert broker_folder() is None


def test_brokers_make_their_folders_where_they_are_told(tmp_path: Path) -> None:
    nodes = [KafkaBroker(temporary_in=tmp_path), *BrokerCluster(temporary_in=tmp_path).nodes]
    assert {node.log_path.parent.parent for node in nodes} == {tmp_path}
    for node in nodes:
        node.close()
    assert not list(tmp_path.iterdir())
