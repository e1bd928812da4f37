"""A sequence whose result is not finite, through Kafka: an error that names it for every task, and is never cached."""

import asyncio
import csv
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from penstock.ops.cli.main import app
from penstock.ops.kafka import KafkaBroker
from penstock.producer import BackendError, Client
from penstock.producer.wire.topics import bulk_topic, request_topic
from tests.engine.helpers import save_classifier
from tests.integration.conftest import CountRecords, StartWorker, Unique
from tests.integration.test_tasks import QUERY, add_tokenizer

POISON = "w90"  # its embedding is finite, and overflows in the first norm


@pytest.fixture
def overflowing(tmp_path: Path) -> Path:
    """A cross-encoder."""
    directory = tmp_path / "overflowing"
    save_classifier(directory, "bert", num_labels=1)
    add_tokenizer(directory)
    tensors = load_file(directory / "model.safetensors")
    tensors["bert.embeddings.word_embeddings.weight"][5 + int(POISON[1:])] = 3e38
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


async def test_rankings_classes_and_jobs_have_an_error_in_its_place(
    kafka: KafkaBroker,
    unique: Unique,
    start_worker: StartWorker,
    count_records: CountRecords,
    overflowing: Path,
    tmp_path: Path,
) -> None:
    model, servers = unique("overflowing"), kafka.bootstrap_servers
    worker = start_worker(kafka, model=overflowing, served_name=model, cache_path=tmp_path / "cache.sqlite")
    documents = ["w2 w2", f"w3 {POISON}", "w4"]
    async with Client(bootstrap_servers=servers, model=model) as client:
        await worker.ready()
        first = await client.map("rerank", [(QUERY, document) for document in documents])
        again = await client.map("rerank", [(QUERY, document) for document in documents])  # from the cache, but one
        for rows in (first, again):
            assert isinstance(rows[1], BackendError)
            assert "NaN or infinity" in str(rows[1])
        assert (first[0], first[2]) == (again[0], again[2])
        assert isinstance(first[0], float)
        with pytest.raises(BackendError, match="Text 1: ") as caught:
            await client.classify(documents)
        assert list(caught.value.rows) == [1]

    source, target = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("text\n" + "".join(f"{document}\n" for document in documents))
    command = ["classify", "--model", model, "--bootstrap-servers", servers, str(source), str(target)]
    result = await asyncio.to_thread(CliRunner().invoke, app, command, prog_name="penstock")
    assert result.exit_code == 1
    with target.open() as file:
        written = list(csv.DictReader(file))
    assert ["NaN or infinity" in row["error"] for row in written] == [False, True, False]
    assert [bool(row["label"]) for row in written] == [True, False, True]
    await worker.stop()
    for topic in (request_topic(model), bulk_topic(request_topic(model))):
        assert await count_records(kafka, f"{topic}.dead-letter") > 0
