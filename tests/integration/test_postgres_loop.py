"""PostgreSQL, Debezium, a route, the JDBC sink, PostgreSQL with pgvector: a small run of `make loop`."""

import json
import os
from pathlib import Path

import pytest

from penstock.ops.kafka import BrokerError
from penstock.ops.kafka.jars import fetch_jars
from penstock.ops.loop.connect import PACKAGE
from penstock.ops.loop.loop_run import run_loop
from penstock.ops.loop.loop_settings import LoopSettings
from tests.parity_checkpoints import sentence_encoder

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def connect_jars() -> None:
    try:
        fetch_jars(PACKAGE)
    except BrokerError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


def test_vectors_follow_a_table_through_inserts_updates_deletes_and_a_killed_worker(tmp_path: Path) -> None:
    sentence_encoder(tmp_path / "model")
    logs = tmp_path / "logs"
    logs.mkdir()
    verdict = run_loop(LoopSettings(model=tmp_path / "model", rows=90, kills=1, timeout_s=600), logs)
    assert verdict.complaints == {}, json.dumps(verdict.figures)
    assert verdict.figures["kills"] == 1
    assert verdict.figures["vectors"] > 30
