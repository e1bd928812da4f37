"""The benchmarks' own arithmetic: the engine alone, processes, and suites of parts."""

import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BertConfig

from penstock.ops.bench.common import runner
from penstock.ops.bench.common.machine import describe_machine, slug
from penstock.ops.bench.common.part_bench import DeadlinePassed, PartBench, deadline
from penstock.ops.bench.common.part_runner import run_part
from penstock.ops.bench.common.processes import (
    ProcessFailed,
    cores_used,
    cpu_s,
    descendants,
    rss_bytes,
    run_once,
    serving,
)
from penstock.ops.bench.common.runner import run_suite
from penstock.ops.bench.common.setup import Setup, shuffled_texts
from penstock.ops.bench.common.suite import BenchSuite, named
from penstock.ops.bench.contestants import int8_alone
from penstock.ops.bench.contestants.engine_alone import EngineAlone, full_groups
from penstock.ops.bench.contestants.gemm_floor import LARGE_CHUNK_TOKENS, large_chunks
from penstock.ops.bench.contestants.labels import labels_beside_the_pipeline
from penstock.ops.bench.cpu import part_int8
from penstock.ops.bench.cpu.cpu_tables import largest_change
from penstock.ops.bench.cpu.part_engine import cosine
from penstock.ops.bench.serving.policies import DEFAULT, POLICIES
from penstock.ops.bench.serving.policies import SUITE as SERVING
from penstock.ops.bench.suites import SUITES
from penstock.ops.demo.demo_model import model_directory
from penstock.worker.settings import WorkerSettings
from tests.engine.helpers import needs_vnni
from tests.ops.bench_stub import STUB, Shared


@given(st.lists(st.integers(1, 50), max_size=60), st.integers(1, 10), st.integers(1, 80))
def test_full_groups_keep_the_order_and_the_caps(lengths: list[int], max_sequences: int, max_tokens: int) -> None:
    rows = [np.full(length, index, np.int32) for index, length in enumerate(lengths)]
    groups = full_groups(rows, max_tokens, max_sequences)
    assert [row.tolist() for group in groups for row in group] == [row.tolist() for row in rows]
    sizes = [sum(map(len, group)) for group in groups]
    for index, group in enumerate(groups):
        assert len(group) == 1 or (len(group) <= max_sequences and sizes[index] <= max_tokens)
        if index + 1 < len(groups):
            assert len(group) == max_sequences or sizes[index] + len(groups[index + 1][0]) > max_tokens


@given(st.integers(1, 100_000), st.integers(1, 8))
def test_large_chunks_hold_every_token_and_load_every_core_alike(tokens: int, cores: int) -> None:
    chunks = large_chunks(tokens, cores)
    assert sum(chunks) == tokens
    assert len(chunks) % cores == 0
    assert max(chunks) <= LARGE_CHUNK_TOKENS
    assert max(chunks) - min(chunks) <= 1


@pytest.mark.slow
def test_the_engine_alone_gives_each_text_its_own_vector() -> None:
    """Over several polls and batches, the texts' order is kept."""
    texts = [f"{text} {index}" for index, text in enumerate(shuffled_texts(20))] * 30
    engine = EngineAlone(model_directory(), "float32")
    vectors, seconds = engine.embed(texts)
    assert sum(engine.batch_tokens(engine.token_ids(texts))) > 3 * engine.settings.max_batch_tokens
    engine.close()
    assert vectors.shape == (600, 384)
    assert seconds > 0
    assert cosine(vectors, np.tile(vectors[:20], (30, 1))).min() > 0.99999


@needs_vnni
@pytest.mark.slow
def test_eight_bits_are_measured_without_contestants_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(int8_alone, "find_spec", lambda name: None)
    threads = torch.get_num_threads()
    found = part_int8.run(Setup({"scale": 0.01}))
    torch.set_num_threads(threads)
    others = {"onnxruntime, onnx, onnxscript": "ONNX Runtime int8"}
    others |= {f"{next(iter(others))}, openvino, nncf": "OpenVINO int8"}
    left_out = {name: f"not installed: {packages}" for packages, name in others.items()}
    assert {name: why for name, why in found["left_out"].items() if name in left_out} == left_out
    assert found["texts"] == 64
    assert all(len(rates) == 5 and min(rates) > 0 for rates in found["texts_per_cpu_s"].values())
    assert 0.999 < found["cosine_to_float32"]["penstock int8"]["min"] < 0.99999
    assert found["neighbours_kept"]["penstock float32"] == 1 >= found["neighbours_kept"]["penstock int8"] > 0.95


@pytest.mark.slow
def test_labels_have_the_scores_of_the_pipeline_beside_them(tmp_path: Path) -> None:
    """Over several records and batches, the texts' order is kept."""
    small: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
    }
    config = BertConfig(**small, initializer_range=1.0)
    found = labels_beside_the_pipeline(config, 200, tmp_path, "float32")
    assert found["score_range"] > 0.1
    assert found["largest_difference"] < 1e-5
    assert found["batch"] in found["tried_batches_texts_per_s"]
    assert min(found["texts_per_s"].values()) > 0


def test_texts_are_shuffled_the_same_way_each_time_and_start_again() -> None:
    texts = shuffled_texts(3100)
    assert texts[:20] == shuffled_texts(20)
    assert texts[3080:] == texts[:20]
    assert len(set(texts)) > 3000


def test_memory_change_is_the_farthest_sample_in_either_direction() -> None:
    assert largest_change([100, 103, 91]) == pytest.approx(0.09)
    assert largest_change([100, 100]) == 0


def test_processes_are_watched_through_proc() -> None:
    before, until = sum(cpu_s(os.getpid())), time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert sum(cpu_s(os.getpid())) - before >= 0.08
    assert 2**20 < rss_bytes(os.getpid()) < 2**40
    assert descendants(1 << 30) == []


def test_cores_are_of_processes_that_were_there_all_the_time() -> None:
    assert cores_used({"member 0": 1.0, "member 1": 5.0}, {"member 0": 2.0, "member 2": 1.0}, 2.0) == {"member 0": 0.5}


def test_a_process_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailed, match="No such role"):
        run_once("contestants.echo", {"role": "nobody"}, tmp_path / "log")
    with (
        pytest.raises(ProcessFailed, match="No such role"),
        serving("contestants.echo", {"role": "nobody"}, tmp_path / "log") as pid,
    ):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_the_machine_is_described_in_json() -> None:
    machine = json.loads(json.dumps(describe_machine()))
    assert machine["cpu"]
    assert machine["versions"]["torch"]
    assert slug(machine).endswith(f"-{len(machine['cores_used'])}-cores")


@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_what_a_suite_names_is_there_and_a_whole_run_has_time_for_it(suite: BenchSuite) -> None:
    assert all(callable(named(part.function)) for part in suite.parts.values())
    assert issubclass(named(suite.bench), PartBench)
    assert named(suite.tables)
    assert sum(part.budget_s for part in suite.parts.values() if not part.needs) <= 0.9 * suite.time_limit_s


@pytest.mark.slow
def test_a_run_is_kept_with_what_its_parts_found_and_why_others_did_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    assert run_suite(STUB, ["--output", str(tmp_path), "--commit", "abc1234", "--scale", "0.3"]) == 1
    (path,) = tmp_path.glob("serving-kafka/nvidia-stub/*-abc1234.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["options"] == {"scale": 0.3, "before": None}
    parts = record["parts"]
    assert parts.keys() == {"failed", "died", "loads"}
    assert parts["failed"]["error"] == "RuntimeError: why it failed"
    assert parts["failed"]["failures"]["theirs"]["error"] == "ValueError: no figure of theirs"
    assert parts["died"]["error"] == "the process ended with exit code 9"
    assert parts["loads"]["result"]["rows"][0]["scale"] == 0.3
    assert SERVING.measures(record) == {f"2-100 tokens, {DEFAULT}, in time at 0.9": 80.0}
    printed = capsys.readouterr().out
    assert "80.00 %" in printed
    assert "1 of 3 parts without a failure." in printed


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "is_kept"), [([], True), (["--scale", "0.4"], False), (["loads"], False)])
def test_only_a_whole_run_is_kept_where_nobody_says_where(
    arguments: list[str], is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    loads = dataclasses.replace(STUB, parts={name: STUB.parts[name] for name in ("loads", "beside")})
    assert run_suite(loads, arguments) == 0
    assert len(list(tmp_path.glob("*/*/*.json"))) == is_kept


def test_a_part_without_time_is_not_begun() -> None:
    part = run_part(STUB.parts["loads"].function, [], Shared({"scale": 1.0}), budget_s=10.0, seconds_left=4.0)
    assert (part["error"], part["result"]) == ("not begun: 4 s were left", None)


def test_a_deadline_interrupts_and_is_gone_afterwards() -> None:
    def endless() -> None:
        with deadline(0.01, again_s=5.0):
            while True:
                pass

    with pytest.raises(DeadlinePassed, match="not finished"):
        endless()
    with deadline(100, again_s=5.0):
        assert sum(range(10)) == 45


@pytest.mark.parametrize("policy", POLICIES)
def test_a_policy_is_arguments_that_a_worker_takes(policy: str) -> None:
    names = [option.removeprefix("--").replace("-", "_") for option in POLICIES[policy][::2]]
    WorkerSettings.model_validate({"model": "null", **dict(zip(names, POLICIES[policy][1::2], strict=True))})
