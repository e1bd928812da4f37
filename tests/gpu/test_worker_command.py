"""`penstock worker` as a user starts it: its settings in force, its batches, its answers and its end on SIGTERM."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.engine import load_engine
from penstock.ops.kafka import MockBroker
from penstock.producer import Client
from tests.engine.helpers import MAX_TOKENS, pack, random_sequences, save_encoder

WORKER = (sys.executable, "-c", "from penstock.ops.cli.main import main; main()", "worker")
NUM_SEQUENCES = 400  # of up to 130 tokens: about 26,000 tokens
MOCK_PARTITIONS = 4  # of each topic of the mock broker: a fifth member is idle
# To load the model, compile the kernels, time the batches and join the group. Beside other tests, or where the cores
# are slow, that takes minutes. Below pytest's own bound of a test.
READY_S = 600.0


def events(log: Path, name: str) -> list[dict[str, Any]]:
    lines = log.read_text(errors="replace").splitlines()
    return [
        event for event in map(json.loads, filter(lambda line: line.startswith("{"), lines)) if event["event"] == name
    ]


@pytest.mark.parametrize(
    ("device", "given", "max_tokens", "max_sequences"),
    [
        pytest.param("cuda", {}, 16_384, 1024, marks=pytest.mark.gpu),
        ("cpu", {}, 1024, 256),
        ("cpu", {"PENSTOCK_MAX_BATCH_TOKENS": "16384"}, 16_384, 256),
    ],
)
async def test_a_worker_answers_a_burst_in_batches_up_to_its_caps_and_drains(
    tmp_path: Path, device: str, given: Mapping[str, str], max_tokens: int, max_sequences: int
) -> None:
    checkpoint, log = tmp_path / "tiny", tmp_path / "worker.jsonl"
    save_encoder(checkpoint, "bert", hidden_size=128)
    sequences = random_sequences(np.random.default_rng(0).integers(1, MAX_TOKENS + 1, NUM_SEQUENCES).tolist())
    expected = load_engine(str(checkpoint), device="cpu", dtype="float32").run(pack(sequences)).rows
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    with MockBroker() as broker, log.open("wb") as output:
        worker = await asyncio.create_subprocess_exec(
            *(*WORKER, "--model", str(checkpoint), "--device", device, "--log-format", "json"),
            *("--bootstrap-servers", broker.bootstrap_servers, "--fetch-max-wait-ms", "5", "--processes", "1"),
            env={**outside, **given, "XDG_CACHE_HOME": str(tmp_path)},
            stderr=output,
        )
        try:
            async with Client(
                bootstrap_servers=broker.bootstrap_servers, model="tiny", timeout_s=READY_S, fetch_max_wait_ms=5
            ) as client:
                await client.embed(ids=sequences[:1])
                vectors = await client.embed(ids=sequences)
            worker.terminate()
            assert await worker.wait() == 0
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()

    (settings,) = events(log, "settings_resolved")
    assert settings["device"] == device
    assert (settings["max_batch_tokens"], settings["max_batch_sequences"]) == (max_tokens, max_sequences)
    batches = events(log, "batch_done")
    # A quick worker logs some of its batches. The load that it logs counts all.
    assert sum(load["sequences"] for load in events(log, "worker_load")) == NUM_SEQUENCES + 1
    largest = max(batch["tokens"] for batch in batches)
    assert 1024 < largest <= max_tokens or largest <= max_tokens == 1024
    norms = np.linalg.norm(vectors, axis=1) * np.linalg.norm(expected, axis=1)
    assert (np.sum(vectors * expected, axis=1) / norms).min() > 0.999
    assert [event["unfinished"] for event in events(log, "drained")] == [0]


@pytest.mark.gpu
async def test_the_command_alone_starts_members_on_the_gpu(tmp_path: Path) -> None:
    """Five where there are cores for them. All join and drain, and each that has a partition answers."""
    num_members = min(5, len(os.sched_getaffinity(0)) // 2)
    if num_members < 2:
        pytest.skip("needs four cores")
    checkpoint, log = tmp_path / "tiny", tmp_path / "worker.jsonl"
    save_encoder(checkpoint, "bert", hidden_size=128)
    sequences = random_sequences([5] * NUM_SEQUENCES)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    with MockBroker() as broker, log.open("wb") as output:
        worker = await asyncio.create_subprocess_exec(
            *(*WORKER, "--model", str(checkpoint), "--log-format", "json", "--gpus", "0"),
            *("--bootstrap-servers", broker.bootstrap_servers, "--fetch-max-wait-ms", "5"),
            env={**outside, "XDG_CACHE_HOME": str(tmp_path)},
            stderr=output,
        )
        try:
            async with asyncio.timeout(READY_S):
                while len({event["pid"] for event in events(log, "partitions_assigned")}) < num_members:
                    assert worker.returncode is None
                    await asyncio.sleep(0.2)
            async with Client(
                bootstrap_servers=broker.bootstrap_servers, model="tiny", timeout_s=READY_S, fetch_max_wait_ms=5
            ) as client:
                for start in range(0, NUM_SEQUENCES, 10):
                    await client.embed(ids=sequences[start : start + 10])
            worker.terminate()
            assert await worker.wait() == 0
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()
    loaded = events(log, "member_loaded")
    assert sorted((event["worker"], event["device"]) for event in loaded) == [(n, "gpu 0") for n in range(num_members)]
    assert len(events(log, "cost_table_measured")) == 1  # by the first; the others read it
    assert len({event["worker"] for event in events(log, "batch_done")}) == min(num_members, MOCK_PARTITIONS)
    assert events(log, "members_limited_by_memory") == []
