"""Long texts in routes: their chunks, with the vectors that sentence-transformers has for exactly these."""

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.ops.kafka import KafkaBroker
from tests.engine.helpers import save_sentence_transformer
from tests.integration.conftest import Committed, StartWorker, Unique, letters_of, reader_of
from tests.integration.test_routes import WORDS, Sent, make_topic, read, send


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("chunked")
    save_sentence_transformer(directory, WORDS, prompts={"document": "w1 w2: "}, default_prompt_name="document")
    return directory / "model"


def sentences(count: int) -> str:
    """Of one to fourteen words, some with what takes more than one byte."""
    begun = "w3 w4 é👩‍👩 "
    ends = [" ".join([f"w{(n * k) % 30}" for k in range(1 + n % 14)]) for n in range(count)]
    return "".join([f"{begun[: n % 10]} {end}. " for n, end in enumerate(ends)])


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_chunks_of_long_texts_have_their_places_and_vectors(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, model: Path, delivery: str
) -> None:
    from sentence_transformers import SentenceTransformer

    source, output = await make_topic(kafka, unique("papers")), unique("chunked")
    texts = [sentences(200), "w1 w2.", "w5" * 200, sentences(2000), " ", ""]  # the fourth is longer than 64 KiB
    values = [json.dumps({"n": n, "text": text}).encode() for n, text in enumerate(texts)]
    assert len(values[3]) > 1 << 16
    await send(kafka, source, [Sent(b"same", value) for value in values])
    worker = start_worker(
        kafka,
        model=model,
        dtype="float32",
        served_name=unique("chunked"),
        delivery=delivery,
        input_topic=source,
        output_topic=output,
        text="text",
        chunk_tokens=50,
        chunk_overlap=10,
    )
    enriched = [json.loads(one.value) for one in await read(worker, kafka, output, 6, isolation_level="read_committed")]
    await worker.stop()
    assert [one["n"] for one in enriched] == list(range(6))
    reference: Any = SentenceTransformer(str(model), device="cpu")
    for text, record in zip(texts, enriched, strict=True):
        chunks = [text[one["start"] : one["end"]] for one in record["result"]]
        assert max(len(ids) for ids in reference.tokenizer([f"w1 w2: {chunk}" for chunk in chunks])["input_ids"]) <= 50
        vectors = [one["embedding"] for one in record["result"]]
        np.testing.assert_allclose(vectors, reference.encode(chunks), atol=1e-5)
    numbers = [len(one["result"]) for one in enriched]
    assert numbers[0] > 20
    assert numbers[3] > 200
    assert [numbers[1], numbers[2], numbers[4], numbers[5]] == [1, 1, 1, 1]
    for one, following in itertools.pairwise(enriched[0]["result"]):
        assert one["start"] < following["start"] <= one["end"] < following["end"]
        assert texts[0][: one["end"]].endswith(".")


async def test_a_text_of_more_chunks_than_a_record_may_have_becomes_a_dead_letter(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, model: Path
) -> None:
    source, output = await make_topic(kafka, unique("papers")), unique("chunked")
    records = [Sent(b"many", b"w1 " * 500), Sent(b"few", b"w1 " * 50), Sent(b"none", None)]
    await send(kafka, source, records)
    worker = start_worker(
        kafka,
        model=model,
        served_name=unique("chunked"),
        input_topic=source,
        output_topic=output,
        record_format="text",
        chunk_tokens=20,
        max_sequences=8,
        task="embed",
    )
    found = {one.key: one.value for one in await read(worker, kafka, output, 2)}
    assert found[b"none"] is None
    assert len(json.loads(found[b"few"])["result"]) == 4
    letters = await letters_of(kafka, source, 1)
    await worker.stop()
    assert [(letter.record.key, letter.code, letter.record.value) for letter in letters] == [
        (b"many", "invalid_request", records[0].value)
    ]


KEYS = [f"doc-{n}" for n in range(12)]


def history(count: int) -> list[Sent]:
    """Versions of texts, of none to some thirty chunks; deletes, and records without a text."""
    records = []
    for n in range(count):
        text = None if n % 11 == 5 else sentences((n * 37) % 90)
        value = json.dumps({"n": n, "text": text}).encode()
        records.append(Sent(KEYS[(n * 5) % len(KEYS)].encode(), None if n % 13 == 7 else value))
    return records


async def compacted(broker: KafkaBroker, topic: str) -> dict[str, Any]:
    """The records that a compacting reader has at the end of all partitions."""
    found: dict[str, Any] = {}
    async with reader_of(broker, topic, isolation_level="read_committed") as reader, asyncio.timeout(300):
        ends = await reader.end_offsets(reader.assignment())
        while any([await reader.position(one) < end for one, end in ends.items()]):
            for records in (await reader.getmany(timeout_ms=500)).values():
                for record in records:
                    found[record.key.decode()] = None if record.value is None else json.loads(record.value)
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
async def test_records_of_chunks_are_those_of_the_last_version_also_after_a_kill(
    kafka: KafkaBroker, unique: Unique, start_worker: StartWorker, model: Path, committed: Committed, delivery: str
) -> None:
    source, output, group = await make_topic(kafka, unique("papers")), unique("chunks"), unique("group")
    records = history(120)
    settings = {
        "model": model,
        "served_name": unique("chunks"),
        "group_id": group,
        "delivery": delivery,
        "input_topic": source,
        "output_topic": output,
        "text": "text",
        "chunk_tokens": 40,
        "chunk_output": "records",
        "max_in_flight": 8,
    }
    first = await start_worker(kafka, **settings).ready()
    await send(kafka, source, records[:80])
    async with reader_of(kafka, output) as reader, asyncio.timeout(300):
        while not any((await reader.getmany(timeout_ms=500)).values()):
            assert first.process.poll() is None, first.tail()
    first.process.kill()
    await send(kafka, source, records[80:])
    async with reader_of(kafka, source) as reader:
        ends = {one: end for one, end in (await reader.end_offsets(reader.assignment())).items() if end}
    second = start_worker(kafka, **settings)
    async with asyncio.timeout(300):
        while await committed(kafka, group) != ends:
            assert second.process.poll() is None, second.tail()
            await asyncio.sleep(0.2)
    await second.stop()
    last = {one.key.decode(): json.loads(one.value or b'{"text": null}') for one in records if one.key is not None}
    found = await compacted(kafka, output)
    for key, record in last.items():
        own = {name: value for name, value in found.items() if name.startswith(f"{key}#")}
        text = record["text"] or ""
        num_chunks = 0 if record["text"] is None else own[f"{key}#0"]["result"]["chunks"]
        assert set(own) == {f"{key}#{number}" for number in range(num_chunks)}
        chunks = [own[f"{key}#{number}"] for number in range(num_chunks)]
        assert all({**one, "result": None} == {**record, "result": None} for one in chunks)
        results = [one["result"] for one in chunks]
        assert [one["chunk"] for one in results] == list(range(num_chunks))
        assert [one["text"] for one in results] == [text[one["start"] : one["end"]] for one in results]
        assert "".join("".join([one["text"] for one in results]).split()) == "".join(text.split())
    assert len({key.rpartition("#")[0] for key in found}) > 5
