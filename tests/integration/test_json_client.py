"""JSON requests of a client that knows only WIRE.md, and imports nothing of penstock."""

import asyncio
import json
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaProducer

from tests.engine.helpers import save_tagger
from tests.integration.conftest import StartWorker, Unique, letters_of, reader_of
from tests.integration.test_tasks import add_tokenizer

Answer = tuple[dict[str, bytes], Any]  # headers and value


async def ask(kafka: Any, topic: str, replies: str, values: dict[bytes, bytes]) -> dict[bytes, Answer]:
    """The answers by correlation id."""
    servers, found = kafka.bootstrap_servers, dict[bytes, Answer]()
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer, reader_of(kafka, replies) as consumer:
        for name, value in values.items():
            headers = [("kafka_correlationId", name), ("kafka_replyTopic", replies.encode())]
            await producer.send_and_wait(topic, value, headers=headers)
        async with asyncio.timeout(300):
            while len(found) < len(values):
                record = await consumer.getone()
                received = dict(record.headers)
                found[received["kafka_correlationId"]] = received, json.loads(record.value)
    return found


async def test_vectors_errors_and_dead_letters_of_json_requests(
    kafka: Any, unique: Unique, start_worker: StartWorker
) -> None:
    model, replies = unique("json"), unique("penstock.replies.")
    topic = f"penstock.requests.{model}"
    await start_worker(kafka, served_name=model).ready()
    values = {
        b"one": b'{"tokens": [7, 8, 9]}',
        b"several": b' {"v": 1, "model": "%s", "task": "embed", "tokens": [[7, 8, 10], [100, 200]]}' % model.encode(),
        b"sparse": b'{"task": "embed_sparse", "tokens": [7, 7, 9], "opts": null}',
        b"no such task": b'{"tokens": [7], "task": "classify"}',
        b"no text": b'{"text": 5, "task": "embed"}',
        b"no object": b'{"text": \xff}',
        b"vocabulary": b'{"task": "embed", "tokens": [[1], [2147483648]]}',
    }
    found = await ask(kafka, topic, replies, values)
    assert {headers["content-type"] for headers, _ in found.values()} == {b"application/json"}
    answers = {name: value for name, (_, value) in found.items()}
    one, several = answers[b"one"], answers[b"several"]
    assert (one["v"], one["ok"], one["model"], one["task"], one["n"]) == (1, True, model, "embed", 1)
    assert one["rows"] == [[3, 7, 9, 24]]
    assert {"queue", "compute"} <= one["timing"].keys()
    assert one["batch"]["request_tokens"] == 3
    assert several["rows"] == [[3, 7, 10, 25], [2, 100, 200, 300]]
    assert answers[b"sparse"]["rows"] == [{"indices": [7, 9], "values": [2, 1]}]
    refused = {name: answer["error"] for name, answer in answers.items() if not answer["ok"]}
    assert {name: error["code"] for name, error in refused.items()} == {
        b"no such task": "unsupported_task",
        b"no text": "invalid_request",
        b"no object": "invalid_request",
        b"vocabulary": "bad_token_id",
    }
    assert "`text`" in refused[b"no text"]["message"]
    assert [(row["index"], row["code"]) for row in refused[b"vocabulary"]["rows"]] == [(1, "bad_token_id")]
    async with AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        await producer.send_and_wait(topic, values[b"one"])  # it says nowhere where to answer
    kept = [letter.record.value for letter in await letters_of(kafka, topic, len(refused) + 1)]
    assert sorted(kept) == sorted(values[name] for name in (*refused, b"one"))


async def test_labels_of_tokens_of_a_text(
    kafka: Any, unique: Unique, start_worker: StartWorker, tmp_path: Path
) -> None:
    save_tagger(tmp_path, "bert", id2label={0: "O", 1: "PER", 2: "LOC"})
    add_tokenizer(tmp_path)
    model, replies = unique("json-tagger"), unique("penstock.replies.")
    await start_worker(kafka, model=tmp_path, served_name=model).ready()
    asked = {b"text": json.dumps({"text": "w1 é w30"}).encode(), b"blank": b'{"text": ["w1", "  "]}'}
    found = await ask(kafka, f"penstock.requests.{model}", replies, asked)
    _, reply = found[b"text"]
    assert reply["task"] == "token_classify"
    assert [(token["start"], token["end"]) for token in reply["rows"][0]] == [(0, 2), (3, 4), (5, 8)]
    for token in reply["rows"][0]:
        assert token["label"] in {"O", "PER", "LOC"}
        assert 1 / 3 <= token["score"] <= 1
    assert found[b"blank"][1]["error"]["code"] == "empty"
