"""`penstock check`: what it finds of the broker, the model, the cache, ports and members."""

import asyncio
import os
import re
import socket
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from safetensors.torch import load_file, save_file

from penstock.ops.cli.checks import kafka_probe
from penstock.ops.kafka import MockBroker
from tests.engine.generation.helpers import save_seq2seq
from tests.engine.helpers import save_classifier, save_encoder
from tests.ops.command_line import penstock
from tests.parity_checkpoints import SOUND


async def create_topic(name: str, bootstrap_servers: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap_servers) as producer:
        await producer.partitions_for(name)


def check(*args: str | Path) -> tuple[int, str]:
    """Where no broker is."""
    return penstock("check", "--bootstrap-servers", "127.0.0.1:1", *map(str, args))


class TestCheck:
    @pytest.fixture(autouse=True)
    def patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A broker that runs answers in time, however long the machine stands still."""
        monkeypatch.setattr(kafka_probe, "_ANSWER_S", 60.0)

    def test_no_broker(self) -> None:
        code, text = check()
        assert code == 1
        assert "problem Kafka 127.0.0.1:1 does not answer" in text
        assert "penstock broker" in text
        assert "not checked Topics" in text
        assert "1 problem found." in text

    def test_a_bad_address(self) -> None:
        code, text = penstock("check", "--bootstrap-servers", "no port here")
        assert code == 2
        assert "--bootstrap-servers" in text
        assert "host:port" in text

    def test_the_input_topic_of_a_route(self) -> None:
        with MockBroker() as broker:
            args = ["--bootstrap-servers", broker.bootstrap_servers, "--model", "null"]
            args += ["--input-topic", "orders", "--output-topic", "enriched", "--text", "/text"]
            code, text = penstock("check", *args)
            assert (code, "problem Route the input topic orders does not exist" in text) == (1, True)
            assert "Request topic" not in text
            asyncio.run(create_topic("orders", broker.bootstrap_servers))
            code, text = penstock("check", *args)
        assert (code, "OK Route orders, " in text, "enriched, which the worker creates" in text) == (0, True, True)

    def test_all_is_well(self, tmp_path: Path) -> None:
        with MockBroker() as broker:
            args = ["--bootstrap-servers", broker.bootstrap_servers, "--model", "null"]
            code, text = penstock("check", *args, "--cache-path", str(tmp_path / "cache.db"))
        assert "No problem found." in text
        assert code == 0
        assert "penstock.requests.null does not exist yet" in text
        assert "OK Cache" in text
        assert "Processor" in text

    def test_a_model_of_inference_has_the_tasks_that_requests_name(self, tmp_path: Path) -> None:
        names = {0: "contradiction", 1: "entailment"}
        save_classifier(tmp_path, "bert", id2label=names, label2id={name: index for index, name in names.items()})
        _, text = check("--model", tmp_path)
        assert f"OK Model {tmp_path.name}: classify, embed; 48 dimensions, 2 labels or those of a request, " in text

    def test_a_model_without_a_vector_of_a_text_has_no_dimensions(self, tmp_path: Path) -> None:
        SOUND["SPLADE"](model := tmp_path / "model")
        _, text = check("--model", model)
        assert "OK Model model: embed_sparse; up to 256 tokens, " in text

    def test_model_and_cache_that_do_not_work(self, tmp_path: Path) -> None:
        code, text = check("--model", tmp_path, "--cache-path", tmp_path / "no" / "cache.db")
        assert code == 1
        assert "problem Model" in text
        assert "problem Cache" in text
        assert "3 problems found." in text

    def test_a_model_whose_weights_are_not_finite(self, tmp_path: Path) -> None:
        save_classifier(tmp_path, "bert")
        tensors = load_file(tmp_path / "model.safetensors")
        tensors["classifier.bias"][1] = float("nan")
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
        code, text = check("--model", tmp_path)
        assert code == 1
        assert "tensor 'classifier.bias' holds values that are not finite" in text

    def test_a_cache_file_that_is_none(self, tmp_path: Path) -> None:
        (tmp_path / "cache.db").write_bytes(b"a letter to my aunt" * 100)
        _, text = check("--cache-path", tmp_path / "cache.db")
        assert "problem Cache" in text
        assert "not a database" in text

    @pytest.mark.parametrize(("taken", "host"), [("0.0.0.0", None), ("::1", "::1")])
    def test_a_port_that_is_taken(self, taken: str, host: str | None) -> None:
        with socket.create_server((taken, 0), family=socket.AF_INET6 if host else socket.AF_INET) as server:
            port = server.getsockname()[1]
            args = ("--metrics-port", str(port), *(() if host is None else ("--metrics-host", host)))
            code, text = check(*args)
        assert code == 1
        assert f"problem Metrics port {port}: Address already in use" in text
        _, text = check(*args)
        assert f"OK Metrics port {port} is free" in text

    @pytest.mark.parametrize("model", [None, "tiny"])
    def test_a_head_that_is_not_there(self, tmp_path: Path, model: str | None) -> None:
        head = tmp_path / "head.safetensors"
        if model is not None:
            save_encoder(tmp_path / model, "bert")
        code, text = check("--head", head, *(() if model is None else ("--model", tmp_path / model)))
        assert code == 1
        assert re.search(r"problem Head \S+head.safetensors: No such file or directory", text)
        assert ("OK Model tiny" in text) == (model is not None)

    def test_members_and_where_they_would_run(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text("#!/bin/sh\necho '0, GPU-0, NVIDIA H200, 140000'\necho '1, GPU-1, NVIDIA H200, 140000'\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)))
        _, text = check("--device", "cpu")
        assert "OK Members 1 on the CPU, with 16 cores (by --processes auto)" in text
        _, text = check("--device", "cuda")
        for gpu in (0, 1):
            assert f"4 on gpu {gpu}, NVIDIA H200, with 8 cores among them" in text
        _, text = check("--gpus", "1", "--processes", "2")
        assert "OK Members 2 on gpu 1, NVIDIA H200, with 16 cores among them (as --processes says; fewer" in text
        code, text = check("--gpus", "2")
        assert code == 1
        assert "problem Members --gpus 2: this machine has 2 visible GPUs, from 0." in text
        _, text = check("--gpus", "0", "--device", "cpu")
        assert "problem Members --gpus 0 contradicts --device cpu." in text
        monkeypatch.setattr("shutil.which", lambda _: None)
        for options, found in (
            (("--device", "cpu", "--processes", "2"), "no two members share a GPU here; none would run on one."),
            (("--gpus", "0,1", "--processes", "1"), "no two members share a GPU here; 1 would run on one."),
            (("--gpus", "0"), "nvidia-cuda-mps-control is not installed."),
        ):
            code, text = check(*options, "--mps", "on")
            assert code == 1
            assert f"problem Members --mps on: {found}" in text

    @pytest.mark.slow
    def test_members_that_memory_does_not_hold(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        save_encoder(tmp_path / "tiny", "bert")
        args = ("--model", tmp_path / "tiny", "--device", "cpu")
        _, text = check(*args, "--processes", "2")
        assert re.search(r"OK Members 2 on the CPU, .* \(as --processes says\)", text)
        code, text = check(*args, "--processes", "100000")
        assert code == 1
        assert re.search(r"100000 members need 100000 x \d.\d GiB, \d+.\d GiB are free: \d+ fit", text)
        assert "Give that number as --processes" in text

    def test_a_model_that_generates(self, tmp_path: Path) -> None:
        save_seq2seq(tmp_path / "t5", "t5")
        _, text = check("--model", tmp_path / "t5")
        assert "OK Model t5: generate; up to 1024 tokens, float32 on cpu" in text
        code, text = penstock("calibrate", "--model", str(tmp_path / "t5"))
        assert code == 1
        assert "'t5' generates, and only an encoder can be used here." in text

    def test_a_topic_with_fewer_partitions_than_members(self) -> None:
        with MockBroker() as broker:  # its topics have four partitions
            args = ["--bootstrap-servers", broker.bootstrap_servers]
            asyncio.run(create_topic("few", broker.bootstrap_servers))
            code, text = penstock("check", *args, "--topic", "few", "--processes", "5")
            assert code == 1
            assert "problem Request topic few, 4 partitions" in text
            assert "5 would run on this machine" in text
            assert f"kafka-topics.sh --bootstrap-server {broker.bootstrap_servers} --alter --partitions 60" in text
            code, text = penstock("check", *args, "--topic", "few", "--processes", "4")
            assert code == 0
            code, text = penstock("check", *args, "--topic", "none", "--processes", "3", "--partitions", "2")
            assert code == 1
            assert "a worker with 2 partitions, and 3 would run on this machine" in text
            assert "Give --partitions 60." in text

    def test_a_gpu_that_is_not_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
        save_encoder(tmp_path, "bert")
        _, text = check("--device", "cuda", "--model", tmp_path)
        assert "problem GPU --device cuda, but torch sees no CUDA GPU" in text
        assert "→ Give another --device or --dtype; auto takes what there is." in text
        assert "Give another --model" not in text
